"""docs/classification.md is so: each of its run files is accepted, runs, and pays a right answer in full."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image, ImageDraw

from mmrl.api.types import Case, Prompt, Score
from mmrl.config import load as configs
from mmrl.registry import plugins
from mmrl.testing.cases import mostly_slow
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke
from mmrl.ui.cli import main
from runs import run

datasets = pytest.importorskip("datasets")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "classification.md").read_text()
RUN_FILES = {re.search('name = "(.*)"', text)[1]: text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)}
STYLES = re.findall(r"^\| `([\w-]+)` \|.*\| `(.*)` \| (`.*`) \|$", PAGE, re.MULTILINE)
LEFT_OUT = "ignore:1 of 13 images of birds are left out"


def picture(kind: int, i: int) -> Image.Image:
    """A disc in the colour of its class, at a place of its own."""
    image = Image.new("RGB", (64, 48), (200 + i, 220, 255 - i))
    ImageDraw.Draw(image).ellipse((5 + i, 4, 25 + i, 34), fill=("firebrick", "navy", "seagreen", "darkorange")[kind])
    return image


def write(folder: Path, classes: tuple[str, ...], count: int) -> None:
    for kind, label in enumerate(classes):
        (folder / label).mkdir(parents=True)
        for i in range(count):
            picture(kind, i).save(folder / label / f"{i}.jpg")


def value(verifier: str, completion: str, prompt: Prompt) -> float:
    score = plugins.registry().make_verifier(verifier)(Case(completion=completion, answer=prompt.answer, meta=prompt.meta))
    return score.value if isinstance(score, Score) else score


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the data that the page speaks of."""
    folder = tmp_path_factory.mktemp("place")
    write(folder / "pictures", ("cat", "dog", "fox", "owl"), 30)
    write(folder / "birds", ("003.Sooty_Albatross", "004.Groove_billed_Ani"), 6)
    (folder / "birds" / "004.Groove_billed_Ani" / "broken.jpg").write_bytes(b"this is no picture")
    rows = {"photo": [picture(i % 3, i) for i in range(30)], "species": [("fern", "moss", "reed")[i % 3] for i in range(30)]}
    features = datasets.Features({"photo": datasets.Image(), "species": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(folder / "plants.parquet"))
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def block(mark: str) -> str:
    """The block after an HTML comment."""
    return re.search(rf"<!-- {re.escape(mark)} -->\n```\n(.*?)```", PAGE, re.DOTALL)[1]


def load(name: str, here: Path, tmp_path: Path) -> configs.RunConfig:
    (tmp_path / "run.toml").write_text(RUN_FILES[name])
    return configs.load_config(tmp_path / "run.toml", [f'runs_dir="{tmp_path}"'])


def test_the_page_has_a_run_file_for_every_way():
    assert len(re.findall("```toml", PAGE)) == len(RUN_FILES) == 9


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_file_pays_a_right_answer_in_full_and_has_room_for_it(name, here, tmp_path):
    from mmrl.policies.vlm.tiny.tokens import make_tokenizer

    config = load(name, here, tmp_path)
    tokenizer = make_tokenizer()  # about one token per character: more than a real one takes
    setup = resolve(config)
    for id, task in setup.tasks.items():
        for prompt in [p for split in task.splits for p in task.prompts(split, config.seed)]:
            gold = task.gold(prompt)
            assert {verifier: value(verifier, gold, prompt) for verifier in setup.weights[id]} == dict.fromkeys(
                setup.weights[id], 1
            )
            assert len(tokenizer(gold).input_ids) + 1 <= config.generate.max_tokens


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_right_answer_counts_in_the_evaluation(name, here, tmp_path):
    setup = resolve(load(name, here, tmp_path))
    for id, task in setup.tasks.items():
        prompt = task.prompts("test", 0)[0]
        assert value(setup.metrics[id], task.gold(prompt), prompt) == 1


@pytest.mark.filterwarnings(LEFT_OUT)
@pytest.mark.parametrize("name", mostly_slow(RUN_FILES, everyday=3))
def test_a_run_file_runs(name, here, tmp_path):
    folder = run(smoke(load(name, here, tmp_path)))
    assert (folder.path / "summary.json").is_file()


def test_commands_do_what_the_page_says(here):
    (here / "pictures.toml").write_text(RUN_FILES["closed-set"])
    lines = [line for sh in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in sh.splitlines()]
    quick = [line for line in lines if re.match("mmrl (preview|check|train .* --dry-run)", line)]
    assert len(quick) == 3
    printed = {}
    for line in quick:
        done = CliRunner().invoke(main, shlex.split(line, comments=True)[1:])
        assert done.exit_code == 0, done.output
        printed[line.split()[1]] = done.output
    assert printed["preview"] == block("preview output")
    with Image.open(here / "preview-classification-folder.png") as sheet:
        assert sheet.width > 1000
    (failing,) = re.findall(r"`mmrl (check [^`]*)`\s+fails", PAGE)
    assert CliRunner().invoke(main, shlex.split(failing)).exit_code == 1


def test_the_prompt_is_that_of_the_task(here):
    task = plugins.registry().make_task("classification/folder", {"path": "pictures"})
    (prompt,) = [p for split in task.splits for p in task.prompts(split, 0) if p.id == "fox/3.jpg"]
    assert prompt.text + "\n" == block("prompt of fox/3.jpg")


def test_styles_go_with_the_verifiers_that_the_table_names(here):
    from mmrl_classification.task import STYLES as EXISTING

    assert [style for style, _, _ in STYLES] == ["tags", "question", "confidence", "direct", "cls-rl", "no-thinking"]
    assert {style for style, _, _ in STYLES} == set(EXISTING)
    ours = {"cls-rl": "tags", "no-thinking": "direct"}  # which of our styles has the same form
    verifiers = {style: set(re.findall("`(.*?)`", names)) for style, _, names in STYLES}
    for style, shown, _ in STYLES:
        task = plugins.registry().make_task("classification/folder", {"path": "pictures", "style": style})
        prompt = next(p for p in task.prompts("train", 0) if p.answer == "cat")
        gold = task.gold(prompt)
        assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*").replace(r"\ ", r"\s"), gold)
        for name in ("classification/answer", "classification/exact", "classification/format"):
            assert value(name, gold, prompt) == (name in verifiers[ours.get(style, style)])
        for name in (verifiers[style] - {"classification/calibration"}) | {"classification/contains"}:
            assert value(name, gold, prompt) == 1
            assert value(name, gold.replace("cat", "dog"), prompt) == ("format" in name)


def test_base_to_new_has_these_figures(here):
    task = plugins.registry().make_task("classification/folder", {"path": "pictures", "classes": "base-to-new"})
    prompts = list(task.prompts("test", 0))
    groups = [[p for p in prompts if p.meta["group"] == group] for group in ("base", "new")]
    assert [len(group) for group in groups] == [12, 12]
    results = [(p, float(i < right)) for group, right in zip(groups, (11, 7), strict=True) for i, p in enumerate(group)]
    figures = [f"  {name} {value:.3f}" for name, value in task.summarise(results).items()]
    assert block("figures").splitlines() == figures


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
