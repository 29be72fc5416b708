"""The diagrams of the documentation, drawn as SVG: `make diagrams`."""
