"""The state of N environments as a dataclass of tensors, for simulators that step all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    import torch


class SceneRows:
    """Base of a dataclass whose every field is a tensor with a row for each environment.

    Rows are never changed in place: new tensors replace old ones. A snapshot is a mapping of all fields, so it is complete.
    """

    __slots__ = ()

    def rows(self, ids_n: torch.Tensor) -> Self:
        """A copy of some environments. ids_n: int64 [n]."""
        return type(self)(**{name: value.index_select(0, ids_n) for name, value in self.as_mapping().items()})

    def put(self, ids_n: torch.Tensor, other: Self) -> None:
        """Replaces these environments by the rows of another scene."""
        theirs = other.as_mapping()
        for name, value in self.as_mapping().items():
            setattr(self, name, value.index_copy(0, ids_n, theirs[name]))

    def merged(self, active_N: torch.Tensor, later: Self) -> Self:
        """`later` where active, this scene elsewhere. active_N: bool."""
        import torch

        theirs = later.as_mapping()
        return type(self)(
            **{
                name: torch.where(active_N.view(-1, *[1] * (value.dim() - 1)), theirs[name], value)
                for name, value in self.as_mapping().items()
            }
        )

    def as_mapping(self) -> dict[str, torch.Tensor]:
        """Field -> tensor."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]  # subclasses are dataclasses

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        return cls(**mapping)

    def restored(self, state: Mapping[str, torch.Tensor], n: int, what: str) -> Self:
        """A snapshot of n environments as a scene on this scene's device. Raises UserError, which says `what` doesn't fit and
        what to do, if the snapshot has other fields, shapes or dtypes than this scene."""
        mine = self.as_mapping()
        if set(state) != set(mine) or any(
            state[name].shape != (n, *value.shape[1:]) or state[name].dtype != value.dtype for name, value in mine.items()
        ):
            raise UserError(f"the state doesn't fit {n} environments of {what}")
        return self.from_mapping({name: value.to(mine[name].device) for name, value in state.items()})
