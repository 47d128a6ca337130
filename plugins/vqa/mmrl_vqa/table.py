"""Your own questions: rows of a JSONL, CSV or Parquet file or of a data set, each with pictures, a question and an answer."""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.errors import display_path
from mmrl.api.media.images import load_image
from mmrl.api.tasks.columns import check_columns
from mmrl.api.tasks.groups import RowSets, cells_of, check_group_columns, check_groups, group_figures
from mmrl.api.tasks.image_sources import hash_rank
from mmrl.api.tasks.option_checks import check_choice, check_split, check_type
from mmrl.api.tasks.quoting import quoted
from mmrl.api.tasks.table_splits import Splits, divided, main_split, own_test, read_rows, undivided
from mmrl.api.tasks.tables import IMAGE_COLUMNS, DataTable, LazyItems, fill_columns, resolve_image
from mmrl_vqa.asking import BOXED, DESCRIBED, EUREKA, JOINED, MAYE, STYLES, THOUGHT, ask, letter_of, written
from mmrl_vqa.benchmarks import YES_NO, cv_bench_figures, mme_figures, we_math_figures, yes_no_figures
from mmrl_vqa.cells import (
    PLACE,
    accepted_of,
    by_name,
    filled,
    in_places,
    is_numbers,
    listed,
    option_of,
    other_question,
    shuffled,
    texts,
    turns_of,
    with_shared_pictures,
)
from mmrl_vqa.rephrasing import with_question
from mmrl_vqa.verifiers import KINDS, letter, normalise, said, value

FORMS = ("auto", "letter", "index", "text")
PUBLISHED_KINDS = {
    **dict.fromkeys(("multi_choice", "multi-choice", "multiple-choice", "multiple choice", "mcq"), "choice"),
    **dict.fromkeys(("free_form", "free-form", "open", "open-ended", "float", "integer", "int", "single answer"), "auto"),
}
"""A kind as files of benchmarks name it -> ours."""
BOTH = {"1": "yes", "true": "yes", "0": "no", "false": "no"}
"""An answer to a question for yes or no, as some files write it."""
ELSEWHERE = "or read another trainer's rows by the task interop/table"
WE_MATH, MME, CV_BENCH = "we-math", "mme", "cv-bench"


@dataclass(kw_only=True, eq=False)
class Table(Task):
    """Your own questions about pictures, from a table."""

    path: str
    """A .jsonl, .json, .csv, .tsv or .parquet file, what `datasets` saved, or a data set's name on the Hub."""
    test_path: str | None = None
    """The table of the split `test`. By default a data set's own splits are used, and any other table is divided."""
    test_share: float = 0.2
    """Share of the rows in `test`, for a table that is divided; 1 for a benchmark, which has no split `train`."""
    cut_by: str = "set"
    """How a table is divided: by set, which keeps rows of one of `sets` in one split; by image, which keeps rows about the same
    picture together, too, and reads all rows once; or by row in any case, as without `sets`."""
    name: str | None = None
    """The data set's configuration."""
    revision: str | None = None
    """Commit or tag on the Hub; set it, so that the data can't change."""
    folder: str | None = None
    """Folder of relative paths of pictures; by default the table's own."""
    image_column: str | Sequence[str] = ""
    """Column with a path, bytes or a list of such; or several columns, of which empty ones are left out. By default the first of
    image, images, image_path and image_paths that a row has."""
    text_only: bool = False
    """Allow rows without a picture. By default they are errors."""
    question_column: str = "question"
    question: str | None = None
    """The question with columns in braces, such as "{question} {hint}", or one for all rows whose pictures show theirs."""
    answer_column: str = "answer"
    """Column with the answer, or a list of accepted ones; for text, also those of annotators."""
    rephrased_column: str | None = None
    """Column with the question in other words, for `labels = "co-reward"`."""
    options_column: str | Sequence[str] = "options"
    """Column with a list of options, or a table of them by letter, also as text; or the names of columns with one option
    each, by default A, B and so on where there are such; none, for options that only the pictures show."""
    id_column: str | None = None
    """Column with a row's id; by default its number."""
    kind: str = "auto"
    """Kind of questions: choice, number, math, yes-no, text; auto decides by the options and the answer."""
    kind_column: str | None = None
    """Column with each row's kind, ours or a benchmark's such as multi_choice; `kind` is for rows where it is empty."""
    answer_form: str = "auto"
    """Form of the answer of a choice: letter, index, text (the option itself); auto takes a whole number for an index. Digits in
    a text, as in CSV, and a number among options that are numbers are first looked for among the options."""
    first_index: int = 0
    """Index of the first option: 0 or 1."""
    shuffle: bool = False
    """Shuffle the options, so that no letter is right more often; by the run's seed."""
    relative: float = 0.0
    """Relative tolerance of numbers: ChartQA allows 0.05."""
    absolute: float = 0.0
    """Absolute tolerance of numbers."""
    precision_column: str | None = None
    """Column with the decimals to which an answer is rounded before it is compared."""
    groups: Sequence[str] = ()
    """Columns by whose groups an evaluation reports the mean, such as `category`; `metadata.task` is a key in an object."""
    sets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name of a figure -> columns: the share of sets of rows, equal in all of them, that are right as a whole."""
    figures: str = ""
    """Further figures of an evaluation: we-math, the score that We-Math makes of the parts of its problems; mme, MME's two, with
    `category` among the groups and `both` among the sets; cv-bench, CV-Bench's, with `source` among the groups."""
    difficulty_column: str | None = None
    """Column with a number; the lowest is the easiest."""
    style: str = "short"
    """The requested form of the answer: short (an answer tag), think (a think tag, then an answer tag), plain (without tags),
    boxed (a think tag, then an answer in a box), described (as boxed, with a description tag before it), vlm-r1 (as think, with
    VLM-R1's prompt), r1-reward (as think, with nothing between the tags, for R1-Reward's verifiers), mm-eureka (as think, in
    dollar signs, for MM-Eureka's verifiers), maye (in a box, with MAYE's prompt, for its verifiers)."""
    gold_thought: str = THOUGHT
    """What a gold completion thinks, in styles with thoughts: some rewards pay for what is said there, as VL-Rethinker's does for
    a "Wait"."""

    def __post_init__(self) -> None:
        check_choice("style", self.style, (*STYLES, BOXED, DESCRIBED, JOINED, EUREKA, MAYE))
        check_choice("kind", self.kind, ("auto", *KINDS))
        check_choice("answer_form", self.answer_form, FORMS)
        check_choice("cut_by", self.cut_by, ("set", "image", "row"))
        check_type("shuffle", self.shuffle, bool)
        check_type("text_only", self.text_only, bool)
        for option in ("path", "question_column", "answer_column", "gold_thought"):
            check_type(option, getattr(self, option), str)
        for option in (
            "test_path",
            "name",
            "revision",
            "folder",
            "id_column",
            "kind_column",
            "difficulty_column",
            "rephrased_column",
            "precision_column",
            "question",
        ):
            if getattr(self, option) is not None:
                check_type(option, getattr(self, option), str)
        for option in ("image_column", "options_column"):
            value = getattr(self, option)
            if not isinstance(value, str | list | tuple) or not all(isinstance(v, str) for v in value) or value in ([], ()):
                raise UserError(f"{option} = {value!r:.60} must be the name of a column, or a list of names")
        if type(self.first_index) is not int or self.first_index not in (0, 1):
            raise UserError(f"first_index = {self.first_index!r:.60} must be 0 or 1")
        for option in ("relative", "absolute", "test_share"):
            share, most = getattr(self, option), {"absolute": 1e12, "test_share": 1}.get(option, 0)
            if isinstance(share, bool) or not isinstance(share, int | float) or not (0 <= share < 1 or 1 <= share <= most):
                raise UserError(f"{option} = {share!r:.60} must be a number from 0, {f'at most {most:g}' if most else 'below 1'}")
        check_choice("figures", self.figures, ("", WE_MATH, MME, CV_BENCH))
        if self.figures == MME and not ("category" in self.groups and "both" in self.sets):
            raise UserError('figures = "mme" needs groups = ["category"] and sets = {both = ["category", "question_id"]}')
        if self.figures == CV_BENCH and "source" not in self.groups:
            raise UserError('figures = "cv-bench" needs groups = ["source"]')
        own = ("ID", "key") if self.figures == WE_MATH else ()
        self._grouped = (*check_groups(self.groups, self.sets, YES_NO), *own)
        problems = {WE_MATH: ["ID"]} if self.figures == WE_MATH else {}
        self._rows, self._chosen, self._sets = self._read({**self.sets, **problems})
        self.splits = tuple(self._rows)  # type: ignore[misc]  # the data decide which there are

    def prompts(self, split: str, seed: int) -> LazyItems[Prompt]:
        """The seed shuffles the options, if `shuffle` is set."""
        check_split(split, self.splits)

        def make(row: dict[str, Any], number: int) -> Prompt:
            posed = self._prompt(row, f"{split}-{number}", seed)
            return replace(posed, meta={**posed.meta, **self._sets[split].sizes(row)})

        return LazyItems(self._rows[split], make, self._chosen[split])

    def prompt_sets(self, split: str, seed: int) -> list[int] | None:
        """Those of `sets` and, with its figures, We-Math's problems."""
        return self._sets[split].linked(self._chosen[split])

    def gold(self, prompt: Prompt) -> str:
        return written(str(prompt.answer), self.style, self.gold_thought)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The figures of `groups` and `sets`; of questions for yes or no also `precision`, `recall` and `f1` of yes, and
        `yes_share`, as POPE reports them; those of `figures`."""
        found = group_figures(results, self.groups, self.sets)
        own = we_math_figures(results) if self.figures == WE_MATH else {}
        own |= {MME: mme_figures, CV_BENCH: cv_bench_figures}[self.figures](found) if self.figures in (MME, CV_BENCH) else {}
        return {**found, **yes_no_figures(results), **own}

    def rephrase(self, prompt: Prompt) -> Prompt | None:
        """The question of `rephrased_column`; None without one."""
        meta = prompt.meta
        return with_question(prompt, meta["question"], meta["rephrased"]) if self.rephrased_column else None

    def posed(self, id: str, question: str, kind: str, answer: str, pictures: Sequence[Any]) -> Prompt:
        """A question from elsewhere, of one of `KINDS`, asked as those of the table are; its options are in the text."""
        meta = {"kind": kind, "style": self.style}
        text = ask(quoted(question), kind, self.style)
        return Prompt(id=id, messages=[user_message(text, *pictures)], answer=answer, meta=meta)

    def described(self, prompt: Prompt, description: str) -> Prompt:
        """A question of style `described` to somebody who knows a description in place of the pictures."""
        meta, kind = prompt.meta, prompt.meta["kind"]
        question = f"A picture is described so: {quoted(description)}\n{meta['question']}"
        text = ask(question, kind, BOXED, meta.get("options", ()) if kind == "choice" else ())
        return replace(prompt, messages=[user_message(text)], meta={**meta, "style": BOXED})

    # -- tables -------------------------------------------------------------------------------------------------------------

    def _read(self, sets: Mapping[str, Sequence[str]]) -> tuple[*Splits, dict[str, RowSets]]:
        """Split -> its table, the numbers of its rows there, and the table's `sets`."""
        train = with_shared_pictures(read_rows(self.path, main_split(self.test_share), self.name, self.revision))
        test = self._own_test(train)
        self._check_columns(train, *([] if test is None else [test]))
        linked = RowSets(sets, train.scan)
        if test is not None:
            return *undivided(train, test), {"train": linked, "test": RowSets(sets, test.scan)}
        what = "pictures' rows" if self.cut_by == "image" else "rows"
        return *divided(train, self.test_share, self._key(train, linked), what), {"train": linked, "test": linked}

    def _check_columns(self, *tables: DataTable) -> None:
        """Raise UserError if a table has no column of questions or answers, or of `options_column`, as questions would be asked
        without options, or of `groups`, `sets` or `figures`."""
        check_group_columns(self._grouped, tables)
        needed = ("question_column", "answer_column") if self.question is None else ("answer_column",)
        named = {
            getattr(self, option): (f"{option} = {getattr(self, option)!r:.60}", f" Set {option}, {ELSEWHERE}")
            for option in needed
        }
        for rows in tables:
            first = None if rows.columns else next(rows.scan(["conversations"]), None)
            if "conversations" not in (rows.columns or first or ()):
                check_columns(rows, named)
        if isinstance(name := self.options_column, str) and name not in ("options", "none"):
            for rows in tables:
                check_columns(rows, {name: (f"options_column = {name!r:.60}", ' "none" asks without options')})

    def _own_test(self, train: DataTable) -> DataTable | None:
        """The table of `test_path`, or the data set's own test split; None for a table that is divided."""
        if self.test_path is not None:
            return with_shared_pictures(read_rows(self.test_path, "test", self.name, self.revision))
        test = train if self.test_share == 1 else own_test(self.path, train, self.name, self.revision)
        return test if test.name != train.name else None

    def _key(self, rows: DataTable, sets: RowSets) -> Callable[[int], str]:
        """Gives the key that decides a row's split."""
        key = partial(self._picture_key, rows) if self.cut_by == "image" else str
        if self.cut_by == "row" or not sets.sets or self.test_share == 1:
            return key
        return sets.keys(map(key, range(len(rows)))).__getitem__

    def _picture_key(self, rows: DataTable, number: int) -> str:
        """What tells a row's picture from others; its number, if it has none."""
        try:
            pictures = self._pictures(rows[number])
        except (UserError, ValueError, KeyError, TypeError):
            return str(number)  # raised when the row is used
        return " ".join(str(hash_rank(0, p.hex())) if isinstance(p, bytes) else str(p) for p in pictures[:1]) or str(number)

    # -- rows ---------------------------------------------------------------------------------------------------------------

    def _prompt(self, row: Mapping[str, Any], place: str, seed: int) -> Prompt:
        id = str(row[self.id_column]) if self.id_column else place
        pictures = self._pictures(row)
        for n, one in enumerate(pictures, 1):  # so that the error of a broken one names its row
            load_image(one, name=display_path(one) if isinstance(one, str) else f"{n} of {len(pictures)}")
        if "conversations" in row and self.question_column not in row:
            question, answer = turns_of(row["conversations"])
        else:
            answer = row[self.answer_column]
            question = row[self.question_column] if self.question is None else fill_columns(self.question, row)
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"the question is {question!r:.60}, not a text")
        cells = self._cells(row)
        options = texts(cells)
        accepted = accepted_of(answer)
        kind = self._kind(row, options, accepted)
        meta: dict[str, Any] = {"kind": kind, "style": self.style, **cells_of(row, self._grouped)}
        if row.get("accu_reward_method"):
            meta["accu_reward_method"] = str(row["accu_reward_method"])
        if self.rephrased_column or self.style == DESCRIBED:
            meta["question"] = question.replace(PLACE, "").strip()
        if self.rephrased_column:
            meta["rephrased"] = other_question(row, self.rephrased_column)
        if self.difficulty_column:
            meta["difficulty"] = float(row[self.difficulty_column])
        if kind == "choice":
            counted = type(answer) is int and not any(isinstance(cell, int | float) for cell in cells)
            right = self._right(option_of(answer, options) or accepted[0], cells, counted)
            if self.shuffle and any(PLACE in option for option in options):
                raise ValueError("its options are pictures, which can't be shuffled: leave shuffle out, or remove the row")
            if self.shuffle and options:
                right, options = shuffled(right, options, seed, id)
            answer, meta["options"] = letter_of(right), tuple(options)
        else:
            answer = self._checked(kind, accepted, meta, row)
        text = ask(question.strip(), kind, self.style, options if kind == "choice" else ())
        return Prompt(id=id, messages=[in_places(text, pictures, options)], answer=answer, meta=meta)

    def _pictures(self, row: Mapping[str, Any]) -> list[Any]:
        """The pictures of a row, undecoded. Raises UserError if it needs one and has none."""
        found: list[Any] = []
        if self.image_column:
            columns = [self.image_column] if isinstance(self.image_column, str) else list(self.image_column)
            for column in columns:
                found += filled(row[column])
        else:
            columns = [c for c in IMAGE_COLUMNS if c in row]
            found += next((cells for c in columns if (cells := filled(row[c]))), [])
            if not columns and not self.text_only:
                raise UserError(
                    f"it has no column {', '.join(IMAGE_COLUMNS[:-1])} or {IMAGE_COLUMNS[-1]}, "
                    f"but {', '.join(map(str, row))[:200]}: "
                    "set image_column, or text_only = true for questions without a picture"
                )
        if not found and not self.text_only:
            raise UserError(
                f"there is no picture under {', '.join(columns)}: mend or remove it, "
                "or set text_only = true for questions without one"
            )
        return [resolve_image(self.path, one, self.folder) for one in found]

    def _cells(self, row: Mapping[str, Any]) -> Sequence[Any]:
        """The options as the row has them; none for a question without options."""
        columns = self.options_column
        if columns == "options" and "options" not in row and "A" in row and "B" in row:  # as in VLMEvalKit's files
            columns = [*itertools.takewhile(row.__contains__, string.ascii_uppercase)]
        if not isinstance(columns, str):
            cells: Any = [row[column] for column in columns]
        else:
            cells = listed(row.get(columns))
        if isinstance(cells, Mapping):
            cells = by_name(cells)
        if cells in (None, ""):
            return []
        if not isinstance(cells, list | tuple):
            raise ValueError(f"the options are {cells!r:.60}, not a list")
        return cells

    def _kind(self, row: Mapping[str, Any], options: Sequence[str], accepted: Sequence[str]) -> str:
        kind = str(row[self.kind_column] or self.kind) if self.kind_column else self.kind
        kind = PUBLISHED_KINDS.get(kind.casefold(), kind)
        if kind not in ("auto", *KINDS):
            raise ValueError(f"the kind {kind!r} is unknown: choose one of {', '.join(KINDS)}")
        if kind != "auto":
            return kind
        if options:
            return "choice"
        if len(accepted) == 1:
            one = accepted[0]
            if normalise(one) in ("yes", "no"):
                return "yes-no"
            if value(one) is not None and len(one.split()) == 1:
                return "number"
            if any(sign in one for sign in "\\^$") or is_numbers(one):
                return "math"
        return "text"

    def _right(self, answer: str, cells: Sequence[Any], counted: bool) -> int:
        """The index of the right option among those of `_texts`. counted: the row gives a number among texts, so that it is no
        option's text."""
        options = ["" if cell is None else str(cell).strip() for cell in cells]  # letters and indices count the empty ones too
        if not any(options):
            found = letter(answer)
            if found is None:
                raise ValueError(f"the answer {answer!r:.60} is not a letter, and the row has no options")
            return ord(found) - ord("A")
        form, place = self.answer_form, None
        if form in ("letter", "auto") and (found := letter(answer, options)) and ord(found) - ord("A") < len(options):
            place = ord(found) - ord("A")
        if place is None and (form == "text" or (form == "auto" and not counted)):
            same = [i for i, option in enumerate(options) if option == answer.strip()]
            place = same[0] if same else None
        if place is None and form in ("index", "auto") and answer.strip().isascii() and answer.strip().isdecimal():
            place = int(answer) - self.first_index
        if place is None or not 0 <= place < len(options) or cells[place] in (None, ""):
            raise ValueError(f"the answer {answer!r:.60} is not one of the {len(texts(cells))} options")
        return sum(cell not in (None, "") for cell in cells[:place])

    def _checked(self, kind: str, accepted: Sequence[str], meta: dict[str, Any], row: Mapping[str, Any]) -> str:
        """The answer, checked for its kind. Raises ValueError."""
        one = Counter(accepted).most_common(1)[0][0]
        if kind == "number":
            if value(one) is None:
                raise ValueError(f"the answer {one!r:.60} is not a single number")
            meta.update({k: v for k, v in (("relative", self.relative), ("absolute", self.absolute)) if v})
            if self.precision_column and (places := row[self.precision_column]) not in (None, ""):
                meta["absolute"] = 0.5 * 10.0 ** -int(float(places))
        if kind == "yes-no" and said(one := BOTH.get(one.casefold(), one)) is None:
            raise ValueError(f"the answer {one!r:.60} is neither yes nor no")
        if kind == "text" and len(accepted) > 1:
            meta["answers"] = tuple(accepted)
        return one
