"""Draw all diagrams into docs/: `python -m tools.diagrams`."""

from tools.diagrams.drawn import drawn_diagrams

if __name__ == "__main__":
    for path, content in drawn_diagrams().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
