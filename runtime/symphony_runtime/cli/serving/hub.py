"""Models of the Hugging Face Hub, by name: `--model org/name`.

huggingface_hub downloads into its own cache, which other programs share, and continues what was
interrupted. Only the files that the server reads are downloaded. Without a network, what the cache
has is served.
"""

import glob
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from symphony_runtime.cli.output import CommandError

_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)"
    r"(?:@(?P<revision>[\w./-]+?))?"
    r"(?::(?P<choice>[\w.-]+)|/(?P<file>[\w./ -]+\.gguf))?"
)
# What a server reads of a folder, besides the weights.
_SETTINGS = frozenset(
    {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
        "1_Pooling/config.json", "model.safetensors.index.json",
    }
)  # fmt: skip
_WEIGHTS = re.compile(r"model[\w.-]*\.safetensors")
_PART = re.compile(r"-\d{5}-of-(\d{5})(?=\.gguf\Z)")
_PREFERRED = "Q4_K_M"  # of several GGUF files, as llama.cpp has it
_SHOWN = 12  # names in a message

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub: `org/name[@revision][:CHOICE]`, or `org/name[@revision]/FILE.gguf`.

    `choice` is a part of a GGUF file's name, such as Q8_0.
    """

    name: str
    repository: str
    revision: str | None = None
    choice: str | None = None
    file: str | None = None


def parse_hub_name(model: str, directory: Path) -> HubModel | None:
    """Return the hub's model that `model` names; None: it is a path, relative to `directory`."""
    found = _NAME.fullmatch(model)
    if found is None or (directory / model).exists():
        return None
    return HubModel(model, **found.groupdict())


def locate_model(model: str, directory: Path, say: Say) -> str:
    """Return the path of a model, downloaded if it is the hub's; `tiny` and paths stay.

    Raises CommandError: the hub has no such model, or neither hub nor cache can be read.
    """
    wanted = parse_hub_name(model, directory)
    return model if wanted is None else str(_download(wanted, say))


def _download(wanted: HubModel, say: Say) -> Path:
    # Imported late: it takes as long as all else of a command.
    import httpx2
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    repository, revision = wanted.repository, wanted.revision
    hub = constants.ENDPOINT
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
        sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
        files = choose_files(wanted, sizes)
        size = sum(sizes[name] for name in files)
        say(f"{wanted.name}: {len(files)} files, {size / 1e6:.0f} MB, from {hub} or its cache")
        if not sys.stderr.isatty():
            disable_progress_bars()
        patterns = [glob.escape(name) for name in files]
        folder = snapshot_download(repository, revision=revision, allow_patterns=patterns)
    except GatedRepoError as error:
        raise CommandError(
            f"{repository} is gated: accept its terms at {hub}/{repository}, and set HF_TOKEN or "
            "run `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise CommandError(f"{repository} at {hub} has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise CommandError(
            f"{wanted.name} is no folder or file here, and {hub} shows no repository {repository}; "
            "a private one needs HF_TOKEN, or `hf auth login`"
        ) from error
    except HFValidationError as error:
        raise CommandError(f"{wanted.name} is no folder or file here: {error}") from error
    except (httpx2.HTTPError, OSError) as error:
        return _cached(wanted, error, say)
    return _path(Path(folder), files)


def _cached(wanted: HubModel, error: Exception, say: Say) -> Path:
    """Return what the cache has; CommandError: not the model."""
    from huggingface_hub import constants, snapshot_download

    words = " ".join(str(error).split())[:200]
    try:
        folder = Path(
            snapshot_download(
                wanted.repository, revision=wanted.revision, local_files_only=True,
                allow_patterns=[],
            )
        )  # fmt: skip
    except OSError:
        raise CommandError(
            f"{wanted.name} is no folder or file here, and not in the cache "
            f"{constants.HF_HUB_CACHE}, and {constants.ENDPOINT} cannot be read ({words}). Without "
            "a network, download it elsewhere with `hf download`, and name the folder"
        ) from None
    names = [
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    ]  # fmt: skip
    files = choose_files(wanted, names)
    say(f"{wanted.name}: from the cache, as {constants.ENDPOINT} cannot be read ({words})")
    return _path(folder, files)


def _path(folder: Path, files: list[str]) -> Path:
    """Return what the kernel is given: a GGUF file, the first of its parts, or the folder."""
    return folder / files[0] if files[0].endswith(".gguf") else folder


def choose_files(wanted: HubModel, names: Iterable[str]) -> list[str]:
    """Return the files of a repository that a server reads; of a GGUF file its parts, in order.

    Raises CommandError: there are none, or several GGUF files to choose from.
    """
    names = sorted(names)
    ggufs = _gguf_files(names)
    folder = [name for name in names if name in _SETTINGS or _WEIGHTS.fullmatch(name)]
    whole = "config.json" in folder and any(_WEIGHTS.fullmatch(name) for name in folder)
    if wanted.file is not None:
        found = [files for files in ggufs.values() if wanted.file in files]
    elif wanted.choice is not None:
        found = _chosen(ggufs, wanted.choice)
    elif whole:
        return folder
    else:
        found = list(ggufs.values())
        if len(found) > 1:
            found = _chosen(ggufs, _PREFERRED) or found
    if len(found) == 1:
        return found[0]
    if not ggufs:
        raise CommandError(
            f"{wanted.repository} has no GGUF file"
            + ("" if whole else " and no config.json with model.safetensors")
        )
    listed = ", ".join(sorted(ggufs)[:_SHOWN]) + (", ..." if len(ggufs) > _SHOWN else "")
    raise CommandError(
        f"{wanted.name} names {len(found)} of {wanted.repository}'s GGUF files; name one, as in "
        f"{wanted.repository}:{_PREFERRED} or {wanted.repository}/FILE.gguf: {listed}"
    )


def _gguf_files(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the GGUF files by name; the parts of a split file are one."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(".gguf") and "mmproj" not in name.lower():
            found.setdefault(_PART.sub("", name), []).append(name)
    return found


def _chosen(ggufs: dict[str, list[str]], choice: str) -> list[list[str]]:
    part = re.compile(rf"(?:\A|[-._/]){re.escape(choice)}(?=[-./])", re.IGNORECASE)
    return [files for name, files in ggufs.items() if part.search(name)]
