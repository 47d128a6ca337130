"""The list of long tests: what it is made from, and what its marks do."""

import itertools
import json

import pytest

import long_tests

pytest_plugins = ["pytester"]


def test_a_function_is_as_long_as_its_average_case_on_all_processes(tmp_path):
    rows = {
        "gw2": [["p/b.py::test_w[2]", 0.01]],
        "gw0": [["tests/a.py::test_x[1]", 0.3], ["tests/a.py::test_x[b[0]]", 1.26], ["tests/a.py::test_y", 0.15]],
        "gw1": [
            ["tests/a.py::test_x[2]", 0.9],
            ["p/b.py::test_z", 0.21],
            ["p/b.py::test_w[1]", 0.3],
            ["p/b.py::test_w[2]", 0.01],
        ],
    }
    for name, found in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    before = {"tests/a.py::test_y": 4.0, "tests/a.py::test_unmeasured": 3.0}
    found = long_tests.seconds_of(tmp_path, before)
    assert found == {"p/b.py::test_z": 0.21, "tests/a.py::test_unmeasured": 3.0, "tests/a.py::test_x": 0.82}


def test_what_is_no_longer_in_its_file_is_gone(tmp_path):
    (tmp_path / "it.py").write_text("class TestAll:\n    def test_kept(self): ...\n")
    names = ["it.py::TestAll::test_kept", "it.py::test_kep", "it.py::test_gone", "gone.py::test_kept"]
    assert [name for name in names if long_tests.is_there(name, tmp_path)] == names[:1]


@pytest.fixture
def files(pytester, monkeypatch):
    pytester.makeconftest("import long_tests\ndef pytest_configure(config):\n    config.pluginmanager.register(long_tests)")
    pytester.makeini("[pytest]\nmarkers = long\n everyday\n exhaustive\n always\n slow\n gpu")
    body = """
        import pytest

        @pytest.mark.parametrize("x", [1, 2])
        def test_long(x): ...

        @pytest.mark.everyday
        def test_kept(): ...

        def test_short(): ...
    """
    pytester.makepyfile(test_it=body)
    listed = pytester.path / "long.json"
    listed.write_text(json.dumps({"test_it.py::test_long": 2.0, "test_it.py::test_kept": 2.0}))
    monkeypatch.setattr(long_tests, "LIST", listed)
    monkeypatch.setenv(long_tests.FOLDER, str(pytester.path))
    return pytester


@pytest.mark.parametrize(("marks", "left_out"), [("not long and not slow", 3), (long_tests.EVERYDAY, 0)])
def test_what_is_listed_is_left_out_unless_it_is_everyday(files, marks, left_out):
    """Everyday tests: it isn't even made."""
    files.makepyfile(test_slow="import pytest\npytestmark = pytest.mark.slow\nclass TestAll:\n    def test_it(self): ...")
    result = files.inline_run("-m", marks, "-p", "no:cacheprovider")
    assert [r.nodeid for r in result.getreports("pytest_runtest_logreport") if r.when == "call"] == [
        "test_it.py::test_kept",
        "test_it.py::test_short",
    ]
    assert sum(len(call.items) for call in result.getcalls("pytest_deselected")) == left_out


def test_of_long_tests_no_short_ones_are_made(files):
    """But for those beside a mark, which may be that of one case alone, and may come from another file."""
    files.makepyfile(
        others="import pytest\nCASES = [1, pytest.param(2, marks=pytest.mark.slow)]",
        test_other="""
        import pytest, others

        @pytest.mark.parametrize("x", others.CASES)
        def test_some(x): ...

        def test_quick(): ...
    """,
        test_quick="import pytest\ndef test_beside(): ...\n@pytest.mark.long\ndef test_marked(): ...",
        test_slow="import pytest\ndef test_beside(): ...\nclass TestAll:\n    @pytest.mark.slow\n    def test_it(self): ...",
    )
    result = files.inline_run("-m", long_tests.LONG[0], "-p", "no:cacheprovider")
    ran = sorted(r.nodeid for r in result.getreports("pytest_runtest_logreport") if r.when == "call")
    long = [f"test_it.py::test_long[{x}]" for x in (1, 2)]
    assert ran == [*long, "test_other.py::test_some[2]", "test_quick.py::test_marked", "test_slow.py::TestAll::test_it"]
    left_out = sorted(item.nodeid for call in result.getcalls("pytest_deselected") for item in call.items)
    assert left_out == ["test_other.py::test_some[1]", "test_quick.py::test_beside", "test_slow.py::test_beside"]


def test_seconds_of_each_case_are_written(files):
    files.inline_run("-m", "long", "-p", "no:cacheprovider")
    written = [json.loads(line) for path in files.path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert [nodeid for nodeid, _ in written] == ["test_it.py::test_long[1]", "test_it.py::test_long[2]"]
    assert all(0 <= seconds < 60 for _, seconds in written)


@pytest.mark.parametrize(("seconds", "ran"), [(1.0, 15), (4.0, 3), (14.0, 2), (16.0, 1)])
def test_of_a_long_function_ci_runs_what_takes_some_seconds(files, monkeypatch, seconds, ran):
    monkeypatch.setattr(long_tests, "CASES_S", 15)
    monkeypatch.setattr(long_tests, "FILE_S", 99)
    files.makepyfile(
        test_many="""
        import pytest

        @pytest.mark.parametrize("x", range(20))
        def test_many(x): ...

        @pytest.mark.exhaustive
        def test_other(): ...
    """
    )
    long_tests.LIST.write_text(json.dumps({"test_many.py::test_many": seconds, "test_many.py::test_other": 1.0}))
    result = files.inline_run("-m", "long and not exhaustive", "-p", "no:cacheprovider")
    found = [r.nodeid for r in result.getreports("pytest_runtest_logreport") if r.when == "call"]
    numbers = [int(nodeid.removeprefix("test_many.py::test_many[").removesuffix("]")) for nodeid in found]
    apart = [b - a for a, b in itertools.pairwise(numbers)]
    assert len(numbers) == ran and numbers[0] == 0 and numbers[-1] == (0 if ran == 1 else 19)
    assert max(apart, default=0) - min(apart, default=0) <= 1


def test_of_a_file_ci_runs_the_shortest_and_what_is_always_run_and_begins_with_the_longest_file(files, monkeypatch):
    monkeypatch.setattr(long_tests, "FILE_S", 10)
    files.makepyfile(
        test_kinds="""
        import pytest

        def test_minutes(): ...

        def test_some(): ...

        @pytest.mark.always
        def test_most_important(): ...

        def test_short(): ...

        def test_longer(): ...
    """,
        test_zone="def test_hours(): ...",
        test_quick="def test_seconds(): ...",
        test_unmeasured="import pytest\n@pytest.mark.slow\ndef test_new(): ...",
    )
    seconds = {"minutes": 100.0, "some": 3.0, "most_important": 5.0, "short": 1.0, "longer": 4.0}
    listed = {f"test_kinds.py::test_{name}": s for name, s in seconds.items()} | {"test_zone.py::test_hours": 5000.0}
    listed |= {"test_quick.py::test_seconds": 2.0}
    long_tests.LIST.write_text(json.dumps(listed))
    result = files.inline_run("-m", "(long or slow) and not exhaustive", "-p", "no:cacheprovider")
    found = [r.nodeid.partition("::test_")[2] for r in result.getreports("pytest_runtest_logreport") if r.when == "call"]
    assert found == ["hours", "some", "most_important", "short", "new", "seconds"]
