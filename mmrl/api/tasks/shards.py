"""Shards of WebDataset: `.tar` files whose neighbouring members with one name but for the suffix are a sample, read on access."""

from __future__ import annotations

import os
import tarfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmrl.api.errors import UserError, display_path, shorten

PICTURES = ("jpg", "jpeg", "png", "webp")
"""Suffixes by which a sample names its picture."""
LOOKED_AT = 5
"""Samples whose fields are the columns of the shards, as `datasets` looks at them."""


class Shards:
    """The samples of some shards, in order. A sample that is broken raises when it is read, and the others are read; a file that
    is torn raises at once."""

    def __init__(self, paths: Sequence[str]) -> None:
        """paths: of the `.tar` files. Raises UserError for one that is none, or that is torn."""
        from datasets.packaged_modules.webdataset.webdataset import WebDataset, base_plus_ext

        self.paths, self._decoders, self._split = list(paths), WebDataset.DECODERS, base_plus_ext
        self._shard, self._start, self._members = array("L"), array("Q"), array("L")  # of each sample
        for number in range(len(self.paths)):
            self._scan(number)
        if not len(self):
            raise UserError(
                f"{display_path(self.paths[0])} has no samples: a sample is files with one name, such as 0.jpg and 0.json"
            )
        columns = dict[str, None]()
        for index in range(min(len(self), LOOKED_AT)):
            try:
                columns |= dict.fromkeys(self.read(index))
            except ValueError:  # it is told when it is read
                continue
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._start)

    def read(self, index: int, keys: Sequence[str] | None = None) -> dict[str, Any]:
        """A sample as a row: its picture is under `image`, and what its JSON holds are columns. keys: columns that are wanted, so
        that other pictures needn't be read. Raises ValueError for a file of it that can't be decoded, or that it has twice."""
        sample: dict[str, Any] = {}
        for member, tar in self._files(index, self._members[index]):
            key, field = self._split(member.name)
            if not _counts(member) or key is None:
                continue
            if field in sample:
                raise ValueError(f"it has two files {os.path.basename(member.name)}")
            if keys is None or column_name(field) != "image" or {"image", field} & {*keys}:
                held = tar.extractfile(member)
                assert held is not None
                sample[field] = self._decoded(field, held.read())
            sample["__key__"] = key
        return named(sample)

    def location(self, index: int) -> str:
        """The place of a sample for messages: its shard and its key."""
        ((first, _),) = self._files(index, 1)
        return f"{display_path(self.paths[self._shard[index]])} sample {self._split(first.name)[0]}"

    def _files(self, index: int, count: int) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        """The first members of a sample, with the file in which each can be read now."""
        with open(self.paths[self._shard[index]], "rb") as file:
            file.seek(self._start[index])
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for _ in range(count):
                    member = tar.next()
                    assert member is not None
                    yield member, tar

    def _scan(self, number: int) -> None:
        """Find the samples of a shard."""
        path, last, start = self.paths[number], None, 0
        try:
            with tarfile.open(path, "r:") as tar:
                while (member := tar.next()) is not None:
                    key = self._split(member.name)[0] if _counts(member) else None
                    if key is not None and key != last:
                        self._shard.append(number)
                        self._start.append(member.offset)
                        self._members.append(0)
                        last = key
                    if last is not None:
                        self._members[-1] += 1
                    tar.members = []  # type: ignore[attr-defined]  # tarfile keeps all of them
                start = tar.offset
            with open(path, "rb") as file:  # tarfile takes a broken header for the end
                file.seek(start)
                if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                    raise tarfile.ReadError(f"there is no header at byte {start:,}")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise UserError(
                f"{display_path(path)} can't be loaded: {shorten(error, 200)}: the file may be torn, so fetch it again"
            ) from error

    def _decoded(self, field: str, data: bytes) -> Any:
        """What a file holds, by its suffix, as `datasets` reads it. Raises ValueError for one that can't be decoded."""
        suffix = field.rpartition(".")[2].lower()
        if suffix not in self._decoders:
            return data
        try:
            held = self._decoders[suffix](data)
            return held.tolist() if hasattr(held, "tolist") else held
        except Exception as error:  # decoders raise exceptions of many kinds
            raise ValueError(f"its .{field} can't be decoded ({shorten(error, 120)})") from error


def _counts(member: tarfile.TarInfo) -> bool:
    """Whether a member is a file of a sample, and none that a system has left there."""
    return member.isfile() and not os.path.basename(member.name).startswith((".", "__"))


def named(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample's fields under the names of columns: its picture under `image`, of several the first, and what its JSON holds
    under its own keys."""
    flat: dict[str, Any] = {}
    for field, value in sample.items():
        flat |= {f"{field}.{key}": own for key, own in value.items()} if isinstance(value, dict) else {field: value}
    taken, row = {*flat}, dict[str, Any]()
    for field, value in flat.items():
        name = column_name(field)
        name = field if name in taken else name
        taken.add(name)
        row[name] = value
    return row


def column_name(field: str) -> str:
    """The column of a field of a sample."""
    return "image" if field.lower() in PICTURES else field.removeprefix("json.")
