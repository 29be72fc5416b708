"""A KV file on disk: one safetensors file.

    tokens      U32 [entries]
    positions   I32 [entries]
    lineage     U8 [bytes]     how K and V are computed where tokens and positions do not say it
    kv          F32, BF16 or U64 [layers, 2 (K, V), pages, PAGE_TOKENS, kv_heads, head_dim]

The last two are optional. Metadata (all text, as the format requires) gives the file's format,
model and owner, and two digests: `digest` of the tensors' bytes, `check` of the other metadata.
`seal` is `check` again, keyed: only this server knows the key, so the statements of a sealed file
are true even if it was uploaded (`plain`, lineage, and that K and V are those of the tokens). Slots
behind the last entry are zero: what a recycled page held before never leaves the server.

Everything in a file is checked before it is used: an upload may come from anyone.
"""

import hashlib
import hmac
import json
import math
import os
import struct
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.lineage.packing import pack
from symphony_kernel.kvfs.lineage.spans import lost_trail
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    KV_HEADER_BYTES_MAX,
    KV_LINEAGE_BYTES_MAX,
    PAGE_TOKENS,
    PATH_BYTES_MAX,
)

FORMAT: Final = "symphony-kv"
VERSION: Final = "1"
KV: TypeAlias = npt.NDArray[Any]  # [layers, 2, pages, PAGE_TOKENS, kv_heads, head_dim]

_PIECE_BYTES: Final = 4 << 20  # between two looks of the interpreter at other threads
_LENGTH: Final = struct.Struct("<Q")
# Metadata of the model -> how messages call it.
_IDENTITY: Final = {
    "model": "model", "weights": "model", "dtype": "dtype", "layout": "page layout"
}  # fmt: skip
# A model's dtype -> what NumPy, the format's writer and the format itself call it.
_DTYPES: Final[dict[str, tuple["np.dtype[Any]", str, str]]] = {
    "float32": (np.dtype("<f4"), "float32", "F32"),
    "bfloat16": (np.dtype("<u2"), "bfloat16", "BF16"),  # NumPy has none: the bits
    "uint64": (np.dtype("<u8"), "uint64", "U64"),  # of the simulated executor
}


class FormatError(Exception):
    """The file is broken, or not a KV file."""


class OtherModelError(Exception):
    """The file's K and V are of another model, dtype or page layout."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What K and V depend on besides tokens; they are used only if all of it is equal."""

    model: str
    weights: str  # digest of configuration and weights
    dtype: str  # of the pool: "float32", "bfloat16", or "uint64" of the simulated executor
    layout: str  # of a page: "layers=..,kv_heads=..,head_dim=..,page_tokens=.."
    vocab_size: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Label:
    """A file's owner and name, without its content."""

    tenant: str
    path: str
    entries: int
    public: bool = False
    expires_ms: int = 0  # Unix time; 0: never


@dataclass(frozen=True, slots=True)
class Content:
    """A file's content; `plain` as in `KVFile`. `kv` is None if it must be recomputed.

    `lineage` is a packed trail (`kvfs.lineage`), or empty: each entry saw exactly those before it.
    Writing zeroes what is in `kv` behind the last entry.
    """

    tokens: UInt32  # [entries]
    positions: Int32  # [entries]
    plain: int
    lineage: bytes = b""
    kv: KV | None = None


def write(path: Path, label: Label, identity: Identity, content: Content, key: bytes = b"") -> None:
    """Write a file, sealed with `key`, over any other; not yet safe on disk. OSError."""
    tensors = _tensors(identity, content)
    digest = hashlib.sha256()
    for array, _ in tensors.values():
        digest.update(_view(array))
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        **{name: getattr(identity, name) for name in _IDENTITY},
        "tenant": label.tenant,
        "path": label.path,
        "entries": str(len(content.tokens)),
        "plain": str(content.plain),
        "public": str(int(label.public)),
        "expires_ms": str(label.expires_ms),
        "digest": digest.hexdigest(),
    }
    metadata["check"] = _check(metadata)
    metadata["seal"] = _seal(metadata, key)
    specs = {
        name: TensorSpec(
            dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, (array, dtype) in tensors.items()
    }
    try:
        serialize_file(specs, path, metadata=metadata)
    except SafetensorError as error:  # the library's form of the system's errors
        raise _os_error(error) from error


def read_label(path: Path) -> Label:
    """Return a file's owner and name, from its header; FormatError, OSError."""
    metadata = _read_header(path).metadata
    _verify(metadata)
    label = Label(
        tenant=metadata["tenant"],
        path=metadata["path"],
        entries=_number(metadata, "entries", FILE_ENTRIES_MAX),
        public=metadata.get("public") == "1",
        expires_ms=_number(metadata, "expires_ms", 1 << 62),
    )
    if not label.tenant or not label.path or len(label.path.encode()) > PATH_BYTES_MAX:
        raise FormatError("it has no name")
    return label


def read(path: Path, identity: Identity) -> Content:
    """Return this server's file, K and V only of this model; FormatError, OSError."""
    header = _read_header(path)
    _verify(header.metadata)
    return _read_content(path, header, identity, kv=not _differences(header.metadata, identity))


def verify(path: Path) -> None:
    """Check all bytes of this server's file; FormatError, OSError."""
    header = _read_header(path)
    _verify(header.metadata)
    _check_digest(path, header)


def read_entries(path: Path, start: int, count: int) -> tuple[UInt32, Int32]:
    """Return up to `count` tokens and positions of this server's file; FormatError, OSError."""
    header = _read_header(path)
    _verify(header.metadata)
    tokens: UInt32 = _read_part(path, header, "tokens", np.dtype("<u4"), start, count)
    positions: Int32 = _read_part(path, header, "positions", np.dtype("<i4"), start, count)
    return tokens, positions


def read_upload(path: Path, identity: Identity, key: bytes, *, recompute: bool = False) -> Content:
    """Return an upload's content; only a sealed file is trusted beyond its tokens.

    Other K and V are taken as they are, and nothing is computed from them. With `recompute` they
    are ignored, and each entry is computed from those before it.

    Raises FormatError: it is broken, or has no K and V; OtherModelError: its K and V are not of
    exactly this model (never with `recompute`); OSError.
    """
    header = _read_header(path)
    metadata = header.metadata
    if not recompute and (differs := _differences(metadata, identity)):
        raise OtherModelError(f"it is of another {' and another '.join(differs)}")
    content = _read_content(path, header, identity, kv=not recompute)
    if _is_sealed(metadata, key) and not recompute:
        return content
    tokens, positions, entries = content.tokens, content.positions, len(content.tokens)
    if content.kv is not None:
        return Content(tokens, positions, 0, pack([lost_trail(entries)]), content.kv)
    if not recompute:
        raise FormatError("it has no K and V: ask for them to be computed from its tokens")
    plain = int(np.argmin(np.append(positions == np.arange(entries), False)))
    return Content(tokens, positions, plain)


# --- Writing --------------------------------------------------------------------------------------
def _tensors(identity: Identity, content: Content) -> dict[str, tuple[npt.NDArray[Any], str]]:
    tensors: dict[str, tuple[npt.NDArray[Any], str]] = {
        "tokens": (np.ascontiguousarray(content.tokens, "<u4"), "uint32"),
        "positions": (np.ascontiguousarray(content.positions, "<i4"), "int32"),
    }
    if content.lineage:
        tensors["lineage"] = (np.frombuffer(content.lineage, np.uint8), "uint8")
    if content.kv is not None:
        dtype, name, _ = _DTYPES[identity.dtype]
        kv = np.ascontiguousarray(content.kv)
        assert kv.dtype.itemsize == dtype.itemsize, (kv.dtype, identity.dtype)
        _clear_unused(kv, len(content.tokens))
        tensors["kv"] = (kv, name)
    return tensors


def _view(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array; a view of no elements cannot be cast."""
    return array.data.cast("B") if array.size else memoryview(b"")


def _clear_unused(kv: KV, entries: int) -> None:
    if entries % PAGE_TOKENS:
        kv[:, :, -1, entries % PAGE_TOKENS :] = 0


def _check(metadata: dict[str, str]) -> str:
    """Return the digest of all metadata but the digests of metadata."""
    kept = {key: value for key, value in metadata.items() if key not in ("check", "seal")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _seal(metadata: dict[str, str], key: bytes) -> str:
    return hmac.new(key, metadata["check"].encode(), hashlib.sha256).hexdigest()


def _os_error(error: SafetensorError) -> OSError:
    """Return the system's error that the library has turned into text."""
    words = str(error)
    number = words.rpartition("(os error ")[2].partition(")")[0]
    return OSError(int(number), words) if number.isdigit() else OSError(words)


# --- Reading --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes in the file
    end: int


@dataclass(frozen=True, slots=True)
class _Header:
    metadata: dict[str, str]
    tensors: dict[str, _Tensor]


def _read_header(path: Path) -> _Header:
    """Return the header of a safetensors file, checked against the file's size."""
    with path.open("rb") as file:
        head = file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise FormatError("it is no safetensors file")
        (length,) = _LENGTH.unpack(head)
        if length > KV_HEADER_BYTES_MAX:
            words = f"a header would have {length} bytes, at most {KV_HEADER_BYTES_MAX} are read"
            raise FormatError(f"it is no safetensors file: {words}")
        try:
            # The library reads only the header, and compares it with the file's size.
            with safe_open(path, framework="np", backend="pread"):
                values = json.loads(file.read(length))
        except (SafetensorError, ValueError, RecursionError) as error:
            raise FormatError(f"it is no safetensors file: {error}") from error
        size = os.fstat(file.fileno()).st_size
    if not isinstance(values, dict):
        raise FormatError("its header is no map")
    metadata = values.pop("__metadata__", None) or {}  # the library accepts null
    base = _LENGTH.size + length
    tensors = {}
    for name, tensor in values.items():
        if not isinstance(tensor, dict):  # the library also accepts an array of the values
            raise FormatError(f"its tensor {name[:64]!r} is no map")
        start, end = (base + offset for offset in tensor["data_offsets"])
        # The library has checked this, but of a duplicate key it sees the other value.
        if not base <= start <= end <= size:
            raise FormatError("its tensors lie outside of it")
        tensors[name] = _Tensor(tensor["dtype"], tuple(tensor["shape"]), start, end)
    return _Header(metadata, tensors)


def _read_content(path: Path, header: _Header, identity: Identity, *, kv: bool) -> Content:
    """Return the content, with or without K and V; FormatError, OSError."""
    entries = _check_tensors(header, identity)
    plain = _number(header.metadata, "plain", entries)
    if "digest" in header.metadata:
        _check_digest(path, header)
    tokens: UInt32 = _read_tensor(path, header, "tokens", np.dtype("<u4"))
    positions: Int32 = _read_tensor(path, header, "positions", np.dtype("<i4"))
    _check_entries(tokens, positions, identity)
    lineage = b""
    if "lineage" in header.tensors:
        lineage = _read_tensor(path, header, "lineage", np.dtype("u1")).tobytes()
    if not kv or "kv" not in header.tensors:
        return Content(tokens, positions, plain, lineage)
    values = _read_tensor(path, header, "kv", _DTYPES[identity.dtype][0])
    _clear_unused(values, entries)
    return Content(tokens, positions, plain, lineage, values)


def _is_sealed(metadata: dict[str, str], key: bytes) -> bool:
    try:
        _verify(metadata)
    except FormatError:
        return False
    return hmac.compare_digest(metadata.get("seal", "").encode(), _seal(metadata, key).encode())


def _verify(metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise FormatError(f"it is no {FORMAT} of version {VERSION}")
    wanted = {field.name for field in fields(Label)} | {"plain", "digest"}
    if missing := wanted - set(metadata):
        raise FormatError(f"it does not say {', '.join(sorted(missing))}")
    if metadata.get("check") != _check(metadata):
        raise FormatError("its metadata is not what was written")


def _number(metadata: dict[str, str], key: str, most: int) -> int:
    text = metadata.get(key, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise FormatError(f"its {key} is not a number up to {most}")
    return int(text)


def _check_tensors(header: _Header, identity: Identity) -> int:
    """Return the number of entries; FormatError unless all tensors fit it."""
    tokens = header.tensors.get("tokens")
    if tokens is None or tokens.dtype != "U32" or len(tokens.shape) != 1:
        raise FormatError("it has no tokens: U32 [entries]")
    (entries,) = tokens.shape
    if entries > min(FILE_ENTRIES_MAX, identity.max_context):
        raise FormatError(f"it has {entries} entries, more than the model's context")
    positions = header.tensors.get("positions")
    if positions is None or positions.dtype != "I32" or positions.shape != (entries,):
        raise FormatError("its positions are not I32 [entries]")
    lineage = header.tensors.get("lineage")
    if lineage is not None and (
        lineage.dtype != "U8" or len(lineage.shape) != 1 or lineage.shape[0] > KV_LINEAGE_BYTES_MAX
    ):
        raise FormatError(f"its lineage is not U8 of at most {KV_LINEAGE_BYTES_MAX} bytes")
    if unknown := set(header.tensors) - {"tokens", "positions", "lineage", "kv"}:
        raise FormatError(f"it has other tensors: {', '.join(sorted(unknown)[:4])}")
    if "kv" in header.tensors:
        _check_kv(header, entries)
    return entries


def _check_kv(header: _Header, entries: int) -> None:
    """Compare the tensor of K and V with the layout in the metadata."""
    kv = header.tensors["kv"]
    dtype = header.metadata.get("dtype", "")
    if dtype not in _DTYPES or kv.dtype != _DTYPES[dtype][2]:
        raise FormatError(f"its K and V are {kv.dtype}, and it says {dtype!r}")
    if len(kv.shape) != 6 or layout_of(kv.shape) != header.metadata.get("layout"):
        raise FormatError("its K and V have not the layout that it says")
    if kv.shape[1:4] != (2, page_count(entries), PAGE_TOKENS):
        raise FormatError(f"its K and V are not those of {entries} entries")


def layout_of(shape: tuple[int, ...]) -> str:
    """Return a page's layout, of [layers, 2, n, tokens, kv_heads, head_dim]."""
    layers, _, _, tokens, heads, size = shape
    return f"layers={layers},page_tokens={tokens},kv_heads={heads},head_dim={size}"


def _check_entries(tokens: UInt32, positions: Int32, identity: Identity) -> None:
    if len(tokens) and int(tokens.max()) >= identity.vocab_size:
        raise FormatError(f"it has tokens outside the vocabulary of {identity.vocab_size}")
    if len(tokens) and not 0 <= int(positions.min()) <= int(positions.max()) < identity.max_context:
        raise FormatError("it has positions outside the model's context")


def _differences(metadata: dict[str, str], identity: Identity) -> list[str]:
    """Return which properties of the file's model are not this server's."""
    differs = [
        words for key, words in _IDENTITY.items() if metadata.get(key) != getattr(identity, key)
    ]
    return list(dict.fromkeys(differs))


def _check_digest(path: Path, header: _Header) -> None:
    """Compare the digest with the tensors' bytes, in the order of writing."""
    digest = hashlib.sha256()
    buffer = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        for name in ("tokens", "positions", "lineage", "kv"):
            if name not in header.tensors:
                continue
            tensor = header.tensors[name]
            file.seek(tensor.start)
            rest = tensor.end - tensor.start
            while rest:
                count = file.readinto(memoryview(buffer)[:rest])
                if not count:
                    raise FormatError("it ends too early")
                digest.update(memoryview(buffer)[:count])
                rest -= count
    if digest.hexdigest() != header.metadata["digest"]:
        raise FormatError("its bytes are not those that were written")


def _read_tensor(
    path: Path, header: _Header, name: str, dtype: "np.dtype[Any]"
) -> npt.NDArray[Any]:
    """Return one tensor; unlike the library this lets other threads run."""
    tensor = header.tensors[name]
    count = math.prod(tensor.shape)
    if count * dtype.itemsize != tensor.end - tensor.start:
        raise FormatError(f"its {name} have not the size of their shape")
    array = np.fromfile(path, dtype, count, offset=tensor.start)
    if len(array) < count:
        raise FormatError("it ends too early")
    return array.reshape(tensor.shape)


def _read_part(
    path: Path, header: _Header, name: str, dtype: "np.dtype[Any]", start: int, count: int
) -> npt.NDArray[Any]:
    """Return up to `count` elements of a tensor of one dimension."""
    tensor = header.tensors.get(name)
    if tensor is None or tensor.end - tensor.start != dtype.itemsize * math.prod(tensor.shape):
        raise FormatError(f"it has no {name} of the size that it says")
    count = min(count, max(math.prod(tensor.shape) - start, 0))
    part = np.fromfile(path, dtype, count, offset=tensor.start + start * dtype.itemsize)
    if len(part) < count:
        raise FormatError("it ends too early")
    return part
