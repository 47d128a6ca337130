"""Questions with what specialists said: the attending physician of MMedAgent-RL.

Xia et al. 2025, MMedAgent-RL: Optimizing Multi-Agent Collaboration for Multimodal Medical Reasoning, arXiv 2506.00555: a triage
doctor names the specialty, models in that role answer, and the attending physician decides. It learns first from questions that
all specialists answered right, then from those that divide them, then from those that none did. No code is public; the words
are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrl import Case, Prompt, UserError
from mmrl.api.tasks.option_checks import check_choice, check_type
from mmrl_vqa.table import Table
from mmrl_vqa.verifiers import answer

AGREEMENT = ("any", "easy", "medium", "hard")
"""any: all rows; easy: all opinions are right; medium: some; hard: none."""
INTRO = "Specialists have looked at this case before you. They may be wrong."


@dataclass(kw_only=True, eq=False)
class Consult(Table):
    """Your own questions with the opinions of specialists, which `mmrl consult` writes."""

    opinions_column: str = "opinions"
    """Column with a list of tables: `role`, and its `answer`."""
    agreement: str = "any"
    """Which rows: any, easy (all opinions are right), medium (some), hard (none). A stage for each is the published
    curriculum."""

    def __post_init__(self) -> None:
        check_type("opinions_column", self.opinions_column, str)
        check_choice("agreement", self.agreement, AGREEMENT)
        super().__post_init__()
        if self.agreement != "any":
            self._chosen = {split: self._of_agreement(split) for split in self._rows}

    def _of_agreement(self, split: str) -> list[int]:
        """The numbers of a split's rows with this agreement. Raises UserError if there are none."""
        rows, chosen = self._rows[split], self._chosen[split]
        numbers = list(range(len(rows)) if chosen is None else chosen)
        kept = []
        for number in numbers:
            try:
                share = self._prompt(rows[number], f"{split}-{number}", 0).meta["opinions_right"]
            except KeyError as error:
                raise UserError(f"{rows.location(number)} has no column {error.args[0]!r}: set opinions_column") from error
            except (ValueError, TypeError) as error:
                raise UserError(f"{rows.location(number)}: {error}") from error
            if (share == 1, 0 < share < 1, share == 0)[AGREEMENT.index(self.agreement) - 1]:
                kept.append(number)
        if not kept:
            raise UserError(
                f"agreement = {self.agreement!r} leaves none of the {len(numbers)} rows of {split!r} in {self.path}: use any, "
                "or ask more specialists"
            )
        return kept

    def _prompt(self, row: Mapping[str, Any], place: str, seed: int) -> Prompt:
        prompt = super()._prompt(row, place, seed)
        opinions = opinions_of(row[self.opinions_column])
        meta = {**prompt.meta, "style": "plain"}
        right = [answer(Case(completion=said, answer=prompt.answer, meta=meta)).value == 1.0 for _, said in opinions]
        lines = [INTRO, *(f"{role}: {said}" for role, said in opinions)]
        (message,) = prompt.messages
        *shown, text = message["content"]
        content = [*shown, {**text, "text": "\n".join(lines) + "\n\n" + text["text"]}]
        more = {"opinions": tuple(opinions), "opinions_right": sum(right) / len(right)}
        return replace(prompt, messages=[{**message, "content": content}], meta={**prompt.meta, **more})


def opinions_of(cell: Any) -> list[tuple[str, str]]:
    """[(role, answer)] of a cell. Raises ValueError for anything else."""
    found = []
    for one in cell if isinstance(cell, Sequence) and not isinstance(cell, str) else ():
        role, said = (one.get("role"), one.get("answer")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(said, str) or not role.strip() or not said.strip():
            raise ValueError(f"an opinion is {one!r:.60}, and must be a table with a role and an answer")
        found.append((" ".join(role.split()), " ".join(said.split())))
    if not found:
        raise ValueError(f"the opinions are {cell!r:.60}, and must be a list of tables with a role and an answer")
    return found
