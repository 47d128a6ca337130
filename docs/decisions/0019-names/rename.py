# ruff: noqa
"""Apply a table of renames to a checkout.

    python rename.py renames.tsv ROOT [--dry-run] [--only KIND[,KIND]] [--no-types] [--report FILE] [--changelog]

Run it with a Python that has mypy and the project's dependencies (a worktree's .venv/bin/python): attributes and keyword
arguments are resolved by the types that mypy infers. `ruff format` and `ruff check --select I --fix` come afterwards.

Kinds, and what `where` is:
  module      -                      old and new dotted paths (`where` is `*`)
  function    module                 also constants and type aliases; where the module lacks the name, its only other definition
  class       module
  attribute   module:Class           a method, property, field; overriding and implementing classes follow. `A|B`: several
  parameter   module:function        or module:Class.method
  config-key  module:Class           a field of a section; `[table]` of run files follows from SECTIONS
  metric      *                      exact strings; with `where` = files only in these. `/x` and `x/` are parts of f-strings
  column      files, comma separated exact strings in these files (Python literals, JS literals, backticks in Markdown)
  value       as column
  cli-option  module of the command  `--old`

What can't be decided is left as it is and reported; the exit code is 1 where something was refused.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections import defaultdict
from pathlib import Path

KINDS = "module function class attribute parameter config-key metric column value cli-option".split()
SECTIONS = {
    "RunConfig": "", "PolicyConfig": "policy", "LoraConfig": "policy.lora", "VideoConfig": "policy.video", "TaskConfig": "tasks",
    "GenerateConfig": "generate", "SimulateConfig": "simulate", "EvaluateConfig": "evaluate", "SteeringConfig": "evaluate.steering",
    "JudgeConfig": "judge", "TrainConfig": "train", "CheckpointConfig": "checkpoint", "RecordConfig": "record",
    "LimitsConfig": "limits", "ComputeConfig": "compute", "RlStage": "stages", "SftStage": "stages", "DistillStage": "stages",
    "Training": "stages", "CriticConfig": "stages.critic", "ImitationConfig": "stages.imitation", "SelectConfig": "stages.select",
    "ConditionConfig": "stages.condition", "TemporalConfig": "stages.temporal", "LengthConfig": "stages.length",
    "PartConfig": "stages.parts",
}  # fmt: skip
HINTS = {  # what a variable of this name holds, where no type says so
    "prompt": "Prompt", "rollout": "Rollout", "case": "Case", "score": "Score", "turn": "Turn", "mark": "Mark", "episode": "Rollout",
    "eyes": "Eyes",
    "task": "Task", "policy": "Policy", "screen": "Screen", "source": "Source", "collector": "Collector", "group": "Group",
    "r": "Rollout",
}  # fmt: skip
SKIP = ("tests/golden/", "docs/decisions/")  # golden figures; decisions are history
REPLACES = {"replace", "_replace"}


class Report:
    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)
        self.seen: set[tuple[str, str]] = set()
        self.done: dict[tuple, int] = defaultdict(int)

    def __call__(self, section: str, text: str) -> None:
        if (section, text) not in self.seen:
            self.seen.add((section, text))
            self.lines[section].append(text)


report = Report()


# -- the table --------------------------------------------------------------------------------------------------------------


class Row:
    def __init__(self, line: str, number: int) -> None:
        cells = line.split("\t") + [""] * 6
        self.kind, self.where, self.old, self.new, self.why, self.public = (c.strip() for c in cells[:6])
        self.number = number

    def __str__(self) -> str:
        return f"{self.kind} {self.where} {self.old} -> {self.new}"


def read_table(path: Path, only: set[str]) -> list[Row]:
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#") or line.startswith("kind\t"):
            continue
        row = Row(line, number)
        if row.kind not in KINDS or not row.old or not row.new or not row.where:
            sys.exit(f"{path}:{number}: not a row: {line!r}")
        if not only or row.kind in only:
            rows.append(row)
    return rows


# -- files --------------------------------------------------------------------------------------------------------------------


class File:
    """A Python file, or Python in a string or in a page: its tree, where it stands, and its edits."""

    def __init__(self, path: str, text: str, module: str, is_package: bool = False, base: int = 0) -> None:
        self.path, self.text, self.module, self.is_package, self.base = path, text, module, is_package, base
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = text.splitlines(keepends=True)
        self.bytes = [None if line.isascii() else line.encode() for line in self.lines]
        self.scopes: dict[ast.AST, Scope] = {}
        self.snippet = base != 0

    def offset(self, line: int, column: int) -> int:
        data = self.bytes[line - 1]
        return self.starts[line - 1] + (column if data is None else len(data[:column].decode()))

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def at(self, node_or_offset) -> str:
        offset = (
            node_or_offset if isinstance(node_or_offset, int) else self.offset(node_or_offset.lineno, node_or_offset.col_offset)
        )
        return f"{self.path}:{bisect.bisect_right(self.starts, offset)}"


class Edits:
    """Replacements by file."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)

    def add(self, path: str, start: int, end: int, new: str, row: Row | None = None) -> None:
        have = self.by_path[path].get((start, end))
        if have is not None and have != new:
            report("REFUSED: two names for one place", f"{path} {start}: {have} and {new}")
            return
        if have is None and row is not None:
            report.done[(row.number,)] += 1
        self.by_path[path][(start, end)] = new

    def apply(self, path: str, text: str) -> str:
        last = len(text) + 1
        for (start, end), new in sorted(self.by_path.get(path, {}).items(), reverse=True):
            if end > last:
                report("REFUSED: overlapping edits", f"{path}: {text[start:end]!r} -> {new!r}")
                continue
            text, last = text[:start] + new + text[end:], start
        return text


edits = Edits()


# -- scopes -------------------------------------------------------------------------------------------------------------------


class Scope:
    def __init__(self, kind: str, parent: Scope | None) -> None:
        self.kind, self.parent = kind, parent
        self.bound: dict[str, list[tuple]] = defaultdict(list)
        self.globals: set[str] = set()
        self.used: set[str] = set()


def bind(file: File) -> None:
    """The scope of each Name, and what binds names in it."""

    def target(scope: Scope, name: str, what: tuple) -> None:
        if name in scope.globals:
            root = scope
            while root.parent:
                root = root.parent
            root.bound[name].append(what)
        else:
            scope.bound[name].append(what)

    def visit(node: ast.AST, scope: Scope) -> None:
        file.scopes[node] = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if not isinstance(node, ast.Lambda):
                target(scope, node.name, ("def", node))
                for d in node.decorator_list:
                    visit(d, scope)
                if node.returns:
                    visit(node.returns, scope)
            inner = Scope("function", scope)
            a = node.args
            for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]:
                inner.bound[arg.arg].append(("arg", node))
                file.scopes[arg] = inner
                if arg.annotation:
                    visit(arg.annotation, scope)
            for default in [*a.defaults, *filter(None, a.kw_defaults)]:
                visit(default, scope)
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            for child in body:
                for n in walk_scope(child):
                    if isinstance(n, ast.Global):
                        inner.globals |= set(n.names)
            for child in body:
                visit(child, inner)
            node.inner = inner
            return
        if isinstance(node, ast.ClassDef):
            target(scope, node.name, ("def", node))
            for d in [*node.decorator_list, *node.bases, *node.keywords]:
                visit(d, scope)
            inner = Scope("class", scope)
            for child in node.body:
                visit(child, inner)
            node.inner = inner
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            inner = Scope("function", scope)
            inner.comprehension = True
            for k, g in enumerate(node.generators):
                visit(g.iter, scope if k == 0 else inner)
                visit(g.target, inner)
                for i in g.ifs:
                    visit(i, inner)
            for child in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                visit(child, inner)
            return
        if isinstance(node, ast.NamedExpr):
            s = scope
            while getattr(s, "comprehension", False):
                s = s.parent
            file.scopes[node.target] = s
            target(s, node.target.id, ("assign", node.target))
            visit(node.value, scope)
            return
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                scope.used.add(node.id)
            else:
                target(scope, node.id, ("assign", node))
        elif isinstance(node, ast.Import):
            for a in node.names:
                target(scope, a.asname or a.name.split(".")[0], ("module", a.name if a.asname else a.name.split(".")[0], a))
        elif isinstance(node, ast.ImportFrom):
            source = imported_from(file, node)
            for a in node.names:
                target(scope, a.asname or a.name, ("from", source, a.name, a))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            target(scope, node.name, ("assign", node))
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            target(scope, node.name, ("assign", node))
        elif isinstance(node, ast.MatchMapping) and node.rest:
            target(scope, node.rest, ("assign", node))
        for child in ast.iter_child_nodes(node):
            visit(child, scope)

    root = Scope("module", None)
    file.root = root
    file.scopes[file.tree] = root
    for child in file.tree.body:
        visit(child, root)


def walk_scope(node: ast.AST):
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        yield from walk_scope(child)


def imported_from(file: File, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = file.module.split(".")
    parts = parts[: len(parts) - node.level + (1 if file.is_package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def lookup(scope: Scope, name: str) -> Scope | None:
    """The scope that binds a name as seen from a scope."""
    first = True
    while scope is not None:
        if name in scope.bound and (scope.kind != "class" or first):
            return scope
        scope, first = scope.parent, False
    return None


# -- the tree -----------------------------------------------------------------------------------------------------------------


class Tree:
    def __init__(self, root: Path, rows: list[Row]) -> None:
        self.root, self.rows = root, rows
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
        self.tracked = [p for p in listed.stdout.splitlines() if (root / p).is_file() and not p.startswith(SKIP)]
        self.packaged = {  # folder of a plugin's package -> where its imports begin
            str(Path(p).parent) + "/": str(Path(p).parent.parent) + "/"
            for p in self.tracked
            if re.fullmatch(r"(plugins|sims|mmrl/ui/cli/templates)/\w+/mmrl_\w+/__init__\.py", p)
        } | {"tests/support/": "tests/support/"}
        self.bases = ["", *sorted(set(self.packaged.values()))]
        self.files: dict[str, File] = {}
        self.modules: dict[str, File] = {}
        for p in self.tracked:
            if not p.endswith(".py"):
                continue
            text = (root / p).read_text()
            try:
                file = File(p, text, self.module_of(p), p.endswith("__init__.py"))
            except SyntaxError as error:
                report("not Python", f"{p}: {error}")
                continue
            bind(file)
            self.files[p] = file
            self.modules.setdefault(file.module, file)
        self.packages = {m.rsplit(".", k)[0] for m in self.modules for k in range(m.count(".") + 1)}

    def module_of(self, path: str) -> str:
        m = path[len(self.base_of(path)) : -3].replace("/", ".")
        return m.removesuffix(".__init__")

    def base_of(self, path: str) -> str:
        return next((base for folder, base in self.packaged.items() if path.startswith(folder)), "")

    def defined(self, module: str, name: str) -> bool:
        file = self.modules.get(module)
        return file is not None and any(b[0] in ("def", "assign") for b in file.root.bound.get(name, ()))

    def canonical(self, module: str, name: str, depth: int = 0) -> tuple[str, str] | None:
        """(defining module, name) of what `module.name` is; ("", module) for a module."""
        if f"{module}.{name}" in self.packages and not (module in self.modules and name in self.modules[module].root.bound):
            return "", f"{module}.{name}"
        file = self.modules.get(module)
        if file is None or depth > 8:
            return None
        found = file.root.bound.get(name, ())
        if any(b[0] in ("def", "assign") for b in found):
            return module, name
        for b in found:
            if b[0] == "from":
                return self.canonical(b[1], b[2], depth + 1)
            if b[0] == "module":
                return "", b[1]
        if f"{module}.{name}" in self.packages:
            return "", f"{module}.{name}"
        return None

    def value_of(self, file: File, node: ast.AST) -> tuple[str, str] | None:
        """What a Name or a chain of attributes stands for: ("", module), (module, name), or None."""
        if isinstance(node, ast.Name):
            scope = lookup(file.scopes[node], node.id)
            if scope is None:
                return None
            found = scope.bound[node.id]
            imports = [b for b in found if b[0] in ("from", "module")]
            if imports and len(imports) == len(found):
                b = imports[0]
                return ("", b[1]) if b[0] == "module" else self.canonical(b[1], b[2])
            if scope is file.root and not file.snippet and any(b[0] in ("def", "assign") for b in found):
                return file.module, node.id
            return None
        if isinstance(node, ast.Attribute):
            left = self.value_of(file, node.value)
            if left and left[0] == "":
                return self.canonical(left[1], node.attr)
        return None

    def dotted(self, path: str) -> tuple[str, str, str] | None:
        """("mmrl.x.y", "Name", "rest") of a dotted path: the longest prefix that is a module."""
        parts = path.split(".")
        for k in range(len(parts), 0, -1):
            m = ".".join(parts[:k])
            if m in self.packages:
                return m, parts[k] if k < len(parts) else "", ".".join(parts[k + 1 :])
        return None


# -- what is to be renamed ----------------------------------------------------------------------------------------------------


class Plan:
    def __init__(self, tree: Tree, rows: list[Row]) -> None:
        self.tree = tree
        self.names: dict[tuple[str, str], Row] = {}
        self.attributes: dict[str, list[tuple[set[str], Row]]] = defaultdict(list)  # old -> [({"module.Class"}, row)]
        self.parameters: dict[str, list[tuple[str, Row]]] = defaultdict(list)  # old -> [("module.function", row)]
        self.modules: dict[str, Row] = {}
        self.texts: list[Row] = []
        self.options: list[Row] = []
        self.keys: list[Row] = []
        for row in rows:
            if row.kind == "module":
                if row.old not in tree.packages:
                    last = row.old.rsplit(".", 1)[-1]
                    near = [m for m in tree.modules if m.endswith("." + last) and m.split(".")[0] == row.old.split(".")[0]]
                    if len(near) == 1 and near[0] not in {r.old for r in rows if r.kind == "module"}:
                        report("moved meanwhile", f"{row}: found as {near[0]}")
                        row.old, row.new = near[0], near[0].rsplit(".", 1)[0] + "." + row.new.rsplit(".", 1)[-1]
                if row.old not in tree.packages:
                    report("NOT FOUND", str(row))
                elif row.new in tree.packages:
                    report("REFUSED: the new name is taken", str(row))
                else:
                    self.modules[row.old] = row
            elif row.kind in ("function", "class"):
                if (place := self.place(row, row.where, row.old)) is None:
                    continue
                if tree.defined(place[0], row.new) or row.new in tree.modules[place[0]].root.bound:
                    report("REFUSED: the new name is taken", f"{row} in {place[0]}")
                    continue
                if place in self.names:
                    report("REFUSED: two rows for one name", f"{row} and {self.names[place]}")
                    continue
                self.names[place] = row
            elif row.kind in ("attribute", "config-key"):
                owners = set()
                for one in row.where.split("|"):
                    module, _, cls = one.partition(":")
                    place = self.place(row, module, cls)
                    if place:
                        owners.add(".".join(place))
                if owners:
                    self.attributes[row.old].append((owners, row))
                if row.kind == "config-key":
                    self.keys.append(row)
            elif row.kind == "parameter":
                module, _, function = row.where.partition(":")
                place = self.place(row, module, function.split(".")[0])
                if place:
                    self.parameters[row.old].append((".".join([place[0], place[1], *function.split(".")[1:]]), row))
            elif row.kind == "cli-option":
                self.options.append(row)
            else:
                self.texts.append(row)
        unique: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for file in tree.files.values():
            for name, found in file.root.bound.items():
                if any(b[0] in ("def", "assign") for b in found):
                    unique[name].add((file.module, name))
        self.definitions = unique

    def place(self, row: Row, module: str, name: str) -> tuple[str, str] | None:
        tree = self.tree
        if module != "*" and tree.defined(module, name):
            return module, name
        if module != "*" and module in tree.modules and (found := tree.canonical(module, name)) and found[0]:
            return found
        room = "mmrl." if module == "*" or module.startswith("mmrl.") or module == "mmrl" else module.split(".")[0]
        found = [m for m in tree.modules if m.startswith(room) and tree.defined(m, name)]
        if len(found) == 1:
            if module != "*":
                report("moved meanwhile", f"{row}: {name} found in {found[0]}")
            return found[0], name
        what = f"several: {', '.join(found)}" if found else "gone, or renamed by somebody else"
        report("NOT FOUND", f"{row}: {what}")
        return None


# -- types --------------------------------------------------------------------------------------------------------------------


class Types:
    """What mypy says: for places in files, the classes that a receiver may be."""

    def __init__(self, tree: Tree, cache: str) -> None:
        from mypy import build, nodes
        from mypy.modulefinder import BuildSource
        from mypy.options import Options

        o = Options()
        o.python_version = sys.version_info[:2]
        o.export_types = o.preserve_asts = o.check_untyped_defs = o.ignore_missing_imports = True
        o.incremental, o.cache_dir, o.sqlite_cache = True, cache, False
        o.namespace_packages = o.explicit_package_bases = True
        o.python_executable = sys.executable
        for m in ("transformers.*", "datasets.*"):
            o.per_module_options[m] = {"follow_imports": "skip"}
        o.mypy_path = [str(tree.root / b) for b in tree.bases]
        for old in Path(cache).glob("*/*"):  # ours are to be checked anew: only then are their types exported
            if re.match(r"mmrl|tests|benchmarks|assets|test_|plugins|sims", old.name):
                subprocess.run(["rm", "-rf", str(old)], check=True)
        taken: set[str] = set()
        sources = []
        for path, file in tree.files.items():
            if file.module in taken or not all(part.isidentifier() for part in file.module.split(".")):
                report("without types", path)
                continue
            taken.add(file.module)
            sources.append(BuildSource(str(tree.root / path), file.module, None))
        result = build.build(sources, o)
        self.errors = result.errors
        self.nodes, self.result, self.tree = nodes, result, tree
        self.members: dict[str, dict[tuple, set[str] | None]] = defaultdict(dict)  # path -> position -> classes; None: unknown
        self.calls: dict[str, dict[tuple, tuple]] = defaultdict(dict)  # path -> position -> (classes made, function)
        self.mro: dict[str, list[str]] = {}
        self.fields: dict[type, list[str]] = {}
        for module in taken:
            state = result.graph.get(module)
            if state is None or state.tree is None:
                continue
            path = next(p for p, f in tree.files.items() if f.module == module)
            self._collect(path, state.tree)

    def _classes(self, kind) -> set[str] | None:
        from mypy import types as t

        kind = t.get_proper_type(kind)
        if kind is None or isinstance(kind, t.AnyType):
            return None
        if isinstance(kind, t.Instance):
            return {kind.type.fullname}
        if isinstance(kind, t.UnionType):
            parts = [self._classes(item) for item in kind.items]
            known = [p for p in parts if p is not None]
            return set().union(*known) if known else None
        if isinstance(kind, t.TypeType):
            return self._classes(kind.item)
        if isinstance(kind, t.TypeVarType):
            return self._classes(kind.upper_bound) if not kind.values else None
        if isinstance(kind, t.TupleType):
            return {kind.partial_fallback.type.fullname}
        if isinstance(kind, t.LiteralType):
            return self._classes(kind.fallback)
        if isinstance(kind, t.CallableType):
            return self._classes(kind.ret_type) if kind.is_type_obj() else {"builtins.function"}
        if isinstance(kind, t.Overloaded):
            return self._classes(kind.items[0])
        if isinstance(kind, t.NoneType):
            return set()
        return {"?"}

    def _collect(self, path: str, tree) -> None:
        from mypy import types as t

        nodes, types = self.nodes, self.result.types

        def key(e) -> tuple:
            return e.line, e.column, e.end_line, e.end_column

        def made_by(e) -> tuple:
            callee = t.get_proper_type(types.get(e))
            node = getattr(e, "node", None)
            function = ""
            if isinstance(node, (nodes.FuncDef, nodes.OverloadedFuncDef, nodes.Decorator)):
                function = node.fullname
            classes: set[str] | None = set()
            if isinstance(callee, t.CallableType):
                if callee.definition is not None and not function:
                    function = callee.definition.fullname
                classes = self._classes(callee.ret_type) if callee.is_type_obj() else set()
            elif isinstance(callee, t.Overloaded):
                classes = self._classes(callee) if callee.is_type_obj() else set()
            elif isinstance(callee, t.TypeType):
                classes = self._classes(callee.item)
            elif callee is None or isinstance(callee, t.AnyType):
                classes = None
            if isinstance(node, nodes.TypeInfo):
                classes = {node.fullname}
            return classes, function

        seen: set[int] = set()
        todo = [tree]
        while todo:
            e = todo.pop()
            if id(e) in seen:
                continue
            seen.add(id(e))
            if isinstance(e, nodes.MemberExpr):
                of_module = isinstance(e.expr, nodes.RefExpr) and isinstance(e.expr.node, nodes.MypyFile)
                if not of_module:
                    found = types.get(e.expr)
                    classes = self._classes(found) if found is not None else None
                    if isinstance(e.expr, nodes.RefExpr) and isinstance(e.expr.node, nodes.TypeInfo):
                        classes = {e.expr.node.fullname}
                    self.members[path][key(e)] = classes
            elif isinstance(e, nodes.SuperExpr) and e.info is not None:
                self.members[path][key(e)] = {b.fullname for b in e.info.mro[1:]}
            elif isinstance(e, nodes.CallExpr):
                classes, function = made_by(e.callee)
                first = self._classes(types[e.args[0]]) if e.args and e.args[0] in types else None
                self.calls[path][key(e)] = (classes, function, first)
            elif isinstance(e, nodes.ClassDef) and e.info is not None:
                self.mro[e.info.fullname] = [b.fullname for b in e.info.mro]
            kind = type(e)
            if kind not in self.fields:
                self.fields[kind] = [
                    name
                    for name in dir(kind)
                    if not name.startswith("_")
                    and name not in CROSS
                    and type(getattr(kind, name)).__name__ in ("getset_descriptor", "member_descriptor")
                ]
            for name in self.fields[kind]:
                try:
                    value = getattr(e, name)
                except Exception:  # noqa: S112  properties that hold only for some nodes
                    continue
                self._push(value, todo)

    def _push(self, value, todo: list) -> None:
        nodes = self.nodes
        if isinstance(
            value, (nodes.Statement, nodes.Expression, nodes.Argument, nodes.FuncItem, nodes.Decorator, nodes.OverloadedFuncDef)
        ):
            todo.append(value)
        elif isinstance(value, (list, tuple)):
            for one in value:
                self._push(one, todo)


CROSS = {"info", "node", "type", "analyzed", "original_def", "definition", "mypy_file", "unanalyzed_type", "names", "impl_"}


def in_tests(name: str) -> bool:
    return "tests" in name.split(".") or name.split(".")[0] not in ("benchmarks",) and not name.startswith("mmrl")


class Families:
    """Which classes an attribute's rename concerns: subclasses, and what implements a protocol."""

    def __init__(self, tree: Tree, plan: Plan, types: Types | None) -> None:
        self.tree, self.plan, self.types = tree, plan, types
        self.bases: dict[str, list[str]] = {}
        self.nodes: dict[str, tuple[File, ast.ClassDef]] = {}
        self.own: dict[str, set[str]] = {}
        self.owners: dict[str, set[str]] = defaultdict(set)  # attribute -> classes of the tree that have it themselves
        for file in tree.files.values():
            for node in ast.walk(file.tree):
                if isinstance(node, ast.ClassDef):
                    self._add(file, node)
        self.children: dict[str, set[str]] = defaultdict(set)
        for name, bases in self.bases.items():
            for base in bases:
                self.children[base].add(name)
        self.family: dict[int, set[str]] = {}
        for old, entries in plan.attributes.items():
            for owners, row in entries:
                self.family[row.number] = self._family(owners, old, row)

        for old, entries in plan.attributes.items():  # stand-ins of tests, where the name has one meaning in the code
            known = set().union(*(self.family[row.number] for _, row in entries))
            code = {o for o in self.owners.get(old, ()) if not in_tests(o)}
            others = {o for o in self.owners.get(old, ()) if in_tests(o)} - known
            if code and code <= known and len({row.new for _, row in entries}) == 1:
                self.family[entries[0][1].number] |= others
                for o in others:
                    report("follows", f"{entries[0][1]}: also {o}, a stand-in of a test")
            else:
                for o in others:
                    report("LOOK: classes of tests that have an attribute of the old name", f"{o}.{old}")

    def _add(self, file: File, node: ast.ClassDef) -> None:
        scope = file.scopes[node]
        name = f"{file.module}.{node.name}" if scope is file.root else f"{file.module}.<{node.lineno}>.{node.name}"
        node.full = name
        self.nodes[name] = (file, node)
        bases = []
        for b in node.bases:
            base = b.value if isinstance(b, ast.Subscript) else b
            value = self.tree.value_of(file, base)
            if value and value[0]:
                bases.append(".".join(value))
            elif isinstance(base, ast.Name):
                s = lookup(scope, base.id)
                if s is not None and s is not file.root:
                    d = next((x[1] for x in s.bound[base.id] if x[0] == "def" and hasattr(x[1], "full")), None)
                    if d is not None:
                        bases.append(d.full)
                bases.append(f"?{base.id}")
            elif isinstance(base, ast.Attribute):
                bases.append(f"?{base.attr}")
        self.bases[name] = bases
        own = set(members_of(node))
        self.own[name] = own
        for attribute in own:
            self.owners[attribute].add(name)

    def is_protocol(self, name: str) -> bool:
        return "?Protocol" in self.bases.get(name, ())

    def ancestors(self, name: str) -> set[str]:
        found, todo = set(), [name]
        while todo:
            for b in self.bases.get(todo.pop(), ()):
                if b not in found:
                    found.add(b)
                    todo.append(b)
        return found

    def all_members(self, name: str) -> set[str]:
        return set().union(self.own.get(name, set()), *(self.own.get(a, set()) for a in self.ancestors(name)))

    def _family(self, owners: set[str], old: str, row: Row) -> set[str]:
        """Those classes, their subclasses, bases in the tree that declare the same, and what implements the protocols."""
        found, todo = set(), list(owners)
        for o in owners:
            if old not in self.all_members(o):
                report("NOT FOUND", f"{row}: {o} has no {old}")
                return set()
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            todo += self.children.get(name, ())
            for base in self.ancestors(name):
                if old in self.own.get(base, ()) and base not in found:
                    report("follows", f"{row}: also {base}, which {name} inherits it from")
                    todo.append(base)
            if self.is_protocol(name):
                wanted = self.own[name] | set().union(*(self.own.get(a, set()) for a in self.ancestors(name)))
                wanted = {m for m in wanted if not m.startswith("__")}
                for other in self.owners.get(old, ()) if len(wanted) > 1 else ():
                    if other not in found and other != name and wanted <= self.all_members(other):
                        report("follows", f"{row}: also {other}, which has all of {name}")
                        todo.append(other)
            else:
                for other in self.owners.get(old, ()):
                    if other not in found and self.is_protocol(other):
                        wanted = {m for m in self.all_members(other) if not m.startswith("__")}
                        if wanted <= self.all_members(name) and len(wanted) > 1:
                            report("follows", f"{row}: also the protocol {other}, which {name} keeps")
                            todo.append(other)
        return found

    def verdict(self, old: str, classes: set[str] | None, path: str, scope_hint: str | None = None) -> Row | None | bool:
        """The row that renames `old` of these classes, None where none does, False where that isn't known."""
        entries = self.plan.attributes[old]
        if classes:
            hits = [
                row for _, row in entries if classes & self.family[row.number] or any(self._inherits(c, row) for c in classes)
            ]
            if len({row.new for row in hits}) > 1:
                return False
            others = (
                {c for c in classes if c not in self.family[hits[0].number] and not self._inherits(c, hits[0])} if hits else set()
            )
            if hits and any(old in self.all_members(c) for c in others):
                return False
            return hits[0] if hits else None
        if classes is not None:  # None alone
            return False
        if scope_hint in HINTS and (classes is None or not classes):
            for _, row in entries:
                if any(c.rsplit(".", 1)[-1] == HINTS[scope_hint] for c in self.family[row.number]):
                    return row
        if scope_hint in ("spec", "stage"):  # some `...Spec`, some `...Stage`
            end = scope_hint.capitalize()
            hits = [row for _, row in entries if any(c.endswith(end) for c in self.family[row.number])]
            kept = [
                o for o in self.owners.get(old, ()) if o.endswith(end) and not any(o in self.family[r.number] for _, r in entries)
            ]
            if len(hits) == 1 and not kept:
                return hits[0]
        rest = self.owners.get(old, set()).difference(*(self.family[row.number] for _, row in entries))
        if (
            not rest
            and len({row.new for _, row in entries}) == 1
            and not self.foreign.get(old)
            and ("_" in old or len(old) > (3 if self.types else 9))
        ):
            return entries[0][1]
        return False

    def _inherits(self, name: str, row: Row) -> bool:
        return any(b in self.family[row.number] for b in (self.types.mro.get(name, ()) if self.types else ()))

    foreign: dict[str, set[str]] = {}


class Inferred:
    """What is kept of `Types`."""

    def __init__(self, members: dict, calls: dict, mro: dict, errors: list[str]) -> None:
        self.members, self.calls, self.mro, self.errors = members, calls, mro, errors


def types_of(tree: Tree, cache: str) -> Inferred:
    """Inferred anew only where a file changed: mypy takes minutes."""
    import hashlib
    import pickle

    digest = hashlib.sha256("".join(f"{p}\0{f.text}\0" for p, f in sorted(tree.files.items())).encode()).hexdigest()[:16]
    kept = Path(cache) / f"names-{digest}.pickle"
    if kept.exists():
        return Inferred(*pickle.loads(kept.read_bytes()))
    found = Types(tree, cache)
    what = (dict(found.members), dict(found.calls), found.mro, found.errors)
    kept.write_bytes(pickle.dumps(what))
    return Inferred(*what)


def members_of(node: ast.ClassDef):
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name
            if child.args.args:
                me = child.args.args[0].arg
                for n in ast.walk(child):
                    if (
                        isinstance(n, ast.Attribute)
                        and isinstance(n.ctx, ast.Store)
                        and isinstance(n.value, ast.Name)
                        and n.value.id == me
                    ):
                        yield n.attr
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
        elif isinstance(child, ast.Assign):
            for t in child.targets:
                for n in ast.walk(t):
                    if isinstance(n, ast.Name):
                        yield n.id


# -- Python -------------------------------------------------------------------------------------------------------------------


class Python:
    """Edits of one file, or of one snippet."""

    def __init__(self, file: File, tree: Tree, plan: Plan, families: Families, types: Types | None) -> None:
        self.file, self.tree, self.plan, self.families, self.types = file, tree, plan, families, types
        self.locals: dict[int, dict[str, Row]] = {}  # id of a scope -> names that it binds and that become others
        self.kept: set[tuple[int, str]] = set()

    def edit(self, start: int, end: int, new: str, row: Row | None) -> None:
        edits.add(self.file.path, self.file.base + start, self.file.base + end, new, row)

    def edit_node(self, node: ast.AST, old: str, new: str, row: Row | None) -> None:
        start, end = self.file.span(node)
        if self.file.text[start:end] != old:
            report("BY HAND: can't find the place", f"{self.file.at(node)}: {old} -> {new}")
            return
        self.edit(start, end, new, row)

    def run(self) -> None:
        self.bindings()
        for node in ast.walk(self.file.tree):
            if isinstance(node, ast.Name):
                self.name(node)
            elif isinstance(node, ast.Attribute):
                self.attribute(node)
            elif isinstance(node, ast.Call):
                self.call(node)
            elif isinstance(node, ast.ClassDef):
                self.class_body(node)
            elif isinstance(node, ast.MatchClass):
                self.match_class(node)
        for node in self.file.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
                for one in ast.walk(node.value):
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        c = self.tree.canonical(self.file.module, one.value)
                        row = self.plan.names.get(c) if c else None
                        a, b = self.file.span(one)
                        if row and row.old == one.value and self.file.text[a + 1 : b - 1] == one.value:
                            self.edit(a + 1, b - 1, row.new, row)
        self.looped()
        if self.plan.keys:
            self.plain_data()
        self.parameters()

    def plain_data(self) -> None:
        """Keys of run files in dicts, such as {"evaluate": {"n": 4}}, evaluate={"n": 4} and AlgorithmSpec(stage={"kl": 0.1})."""
        known: dict[tuple[str, str], Row] = {}
        for row in self.plan.keys:
            for one in row.where.split("|"):
                known[(SECTIONS.get(one.partition(":")[2], "?"), row.old)] = row
        sections = set(SECTIONS.values())

        def under(node: ast.AST) -> list[str]:
            """The section that data["evaluate"] or data.setdefault("evaluate", {}) is; stage["critic"]."""
            if isinstance(node, ast.Name):
                return {"stage": ["stages"], "part": ["stages.parts"]}.get(node.id, [])
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("setdefault", "get")
                and node.args
            ):
                outer, key = node.func.value, node.args[0]
            elif isinstance(node, ast.Subscript):
                outer, key = node.value, node.slice
                if isinstance(key, ast.Constant) and isinstance(key.value, int):
                    return [at for at in under(outer) if at in ("stages", "tasks")]
            else:
                return []
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                return []
            found = [f"{at}.{key.value}" for at in under(outer)] or [key.value]
            return [at for at in found if at in sections]

        def visit(node: ast.AST, section: str | None) -> None:
            if isinstance(node, ast.Dict):
                pairs = [
                    (k.value, k, v)
                    for k, v in zip(node.keys, node.values, strict=True)
                    if isinstance(k, ast.Constant) and isinstance(k.value, str)
                ]
                values = {name: v for name, _, v in pairs}
                if isinstance(values.get("kind"), ast.Constant) and values["kind"].value in ("rl", "sft", "distill"):
                    section = "stages"
                elif "policy" in values and "stages" in values:
                    section = ""
                for name, k, v in pairs:
                    row = known.get((section, name)) if section is not None else None
                    if row:
                        a, b = self.file.span(k)
                        if self.file.text[a + 1 : b - 1] == name:
                            self.edit(a + 1, b - 1, row.new, row)
                    inner = (
                        f"{section}.{name}" if section and f"{section}.{name}" in sections else name if name in sections else None
                    )
                    if inner in ("stages", "tasks") and isinstance(v, ast.Dict):
                        inner = None
                    visit(v, inner)
                for k, v in zip(node.keys, node.values, strict=True):
                    if k is None:
                        visit(v, section)
                return
            if isinstance(node, ast.List | ast.Tuple) and section is not None:
                for v in node.elts:
                    visit(v, section)
                return
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                visit(node.func, None)
                for v in node.args:
                    visit(v, None)
                for k in node.keywords:
                    name = "stages" if called == "AlgorithmSpec" and k.arg in ("stage", "stage_defaults") else k.arg
                    if name in ("stages", "tasks") and called != "AlgorithmSpec" and isinstance(k.value, ast.Dict):
                        name = ""
                    nested = f"stages.{name}" if f"stages.{name}" in sections else name
                    visit(k.value, nested if nested in sections and isinstance(k.value, ast.Dict | ast.List) else None)
                return
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                key = node.slice.value
                row = next((known[(at, key)] for at in under(node.value) if (at, key) in known), None)
                a, b = self.file.span(node.slice)
                if row and self.file.text[a + 1 : b - 1] == key:
                    self.edit(a + 1, b - 1, row.new, row)
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Subscript | ast.BinOp | ast.IfExp):
                section = section if isinstance(node, ast.BinOp | ast.IfExp) else None
            for child in ast.iter_child_nodes(node):
                visit(child, section if isinstance(node, ast.BinOp | ast.IfExp) else None)

        visit(self.file.tree, None)

    # names of modules: which bindings change

    def bindings(self) -> None:
        file, plan = self.file, self.plan
        scopes = {id(s): s for s in file.scopes.values()}
        inner = {id(n.inner): n.inner for n in ast.walk(file.tree) if hasattr(n, "inner")}
        for s in {**scopes, **inner}.values():
            for name, found in list(s.bound.items()):
                rows = set()
                for b in found:
                    if b[0] == "from":
                        c = self.tree.canonical(b[1], b[2])
                        rows.add(plan.names.get(c) if c else None)
                    elif s is file.root and not file.snippet and b[0] in ("def", "assign"):
                        rows.add(plan.names.get((file.module, name)))
                    else:
                        rows.add(None)
                rows_ = {r for r in rows if r}
                if not rows_:
                    continue
                if len(rows) > 1 and not (s is file.root and (file.module, name) in plan.names):
                    report("BY HAND: bound in two ways", f"{file.path}: {name} ({rows_.pop()})")
                    self.kept.add((id(s), name))
                    continue
                row = rows_.pop()
                aliases = [b for b in found if b[0] == "from"]
                for b in aliases:
                    self.import_alias(b[3], row, s, name)
                if any(b[0] == "from" and b[3].asname for b in found):
                    continue
                if clash := self.clash(s, name, row.new):
                    if not aliases:
                        report("REFUSED: shadowed in its own module", f"{clash}: {row}")
                        self.kept.add((id(s), name))
                        continue
                    report("kept the old name by `as`", f"{clash}: {row}")
                    self.kept.add((id(s), name))
                    for b in aliases:
                        self.import_alias(b[3], row, s, name, keep=True)
                    continue
                self.locals.setdefault(id(s), {})[name] = row
                for b in found:
                    if b[0] == "def":
                        self.definition(b[1], row)

    def clash(self, scope: Scope, old: str, new: str) -> str | None:
        """Where the new name would mean something else."""
        if new in scope.bound:
            return f"{self.file.path} binds {new}"
        for node, s in self.file.scopes.items():
            if isinstance(node, ast.Name) and node.id == old and lookup(s, old) is scope:
                t = s
                while t is not scope and t is not None:
                    if new in t.bound and (t.kind != "class" or t is s):
                        return self.file.at(node)
                    t = t.parent
            elif isinstance(node, ast.Name) and node.id == new and isinstance(node.ctx, ast.Load) and lookup(s, new) is None:
                return f"{self.file.at(node)} uses the builtin {new}"
        return None

    def import_alias(self, alias: ast.alias, row: Row, scope: Scope, name: str, keep: bool = False) -> None:
        start, end = self.file.span(alias)
        text = self.file.text[start:end]
        new = text.replace(row.old, row.new, 1) if alias.name == row.old else None
        if new is None:
            return
        if keep and not alias.asname:
            new += f" as {row.old}"
        if alias.asname == row.new:
            new = row.new
        edits.by_path[self.file.path].pop((self.file.base + start, self.file.base + end), None)
        self.edit(start, end, new, row)

    def definition(self, node: ast.AST, row: Row) -> None:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        start = self.file.offset(node.lineno, node.col_offset)
        m = re.compile(r"(?:async\s+)?(?:def|class)\s+").match(self.file.text, start)
        self.edit(m.end(), m.end() + len(node.name), row.new, row)

    def name(self, node: ast.Name) -> None:
        scope = lookup(self.file.scopes[node], node.id)
        if scope is None:
            return
        row = self.locals.get(id(scope), {}).get(node.id)
        if row and (id(scope), node.id) not in self.kept:
            self.edit_node(node, node.id, row.new, row)

    # attributes

    def attribute_span(self, node: ast.Attribute) -> tuple[int, int]:
        end = self.file.offset(node.end_lineno, node.end_col_offset)
        return end - len(node.attr), end

    def attribute(self, node: ast.Attribute) -> None:
        left = self.tree.value_of(self.file, node.value)
        if left and left[0] == "":
            c = self.tree.canonical(left[1], node.attr)
            row = self.plan.names.get(c) if c else None
            if row and node.attr == row.old:
                self._attribute_edit(node, row)
            return
        if node.attr not in self.plan.attributes:
            return
        row = self.families.verdict(node.attr, self.receiver(node), self.file.path, hint_of(node.value))
        if row is False:
            what = "types unknown" if not self.file.snippet else "in a text"
            section = "MAYBE" if self.families.foreign.get(node.attr) or node.attr in vars(dict) else "BY HAND"
            report(f"{section}: .{node.attr}", f"{self.file.at(node)}: {ast.unparse(node)[:70]} ({what})")
        elif row:
            self._attribute_edit(node, row)

    def _attribute_edit(self, node: ast.Attribute, row: Row) -> None:
        start, end = self.attribute_span(node)
        if self.file.text[start:end] != node.attr:
            report("BY HAND: can't find the place", f"{self.file.at(node)}: {row}")
            return
        self.edit(start, end, row.new, row)

    def receiver(self, node: ast.Attribute) -> set[str] | None:
        """The classes of what stands before the dot."""
        value = self.tree.value_of(self.file, node.value)
        if value and value[0] and ".".join(value) in self.families.nodes:
            return {".".join(value)}
        if self.types and not self.file.snippet:
            key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            found = self.types.members.get(self.file.path, {}).get(key)
            if found is not None:
                return found
        if isinstance(node.value, ast.Name):  # self, in a class that is known
            scope = lookup(self.file.scopes[node.value], node.value.id)
            for b in scope.bound[node.value.id] if scope else ():
                if b[0] == "arg":
                    function = b[1]
                    outer = self.file.scopes[function]
                    args = getattr(function.args, "args", [])
                    if outer.kind == "class" and args and args[0].arg == node.value.id:
                        cls = next((n for n in ast.walk(self.file.tree) if getattr(n, "inner", None) is outer), None)
                        full = self.class_name(cls)
                        if full:
                            return {full}
                    annotation = next((a.annotation for a in [*args, *function.args.kwonlyargs] if a.arg == node.value.id), None)
                    if annotation is not None and (v := self.tree.value_of(self.file, annotation)) and v[0]:
                        return {".".join(v)}
        return None

    def class_name(self, cls: ast.ClassDef | None) -> str | None:
        """The class's name, or of a class in a snippet its first known base's."""
        if cls is None:
            return None
        if hasattr(cls, "full"):
            return cls.full
        for b in cls.bases:
            v = self.tree.value_of(self.file, b.value if isinstance(b, ast.Subscript) else b)
            if v and v[0]:
                return ".".join(v)
        return None

    def class_body(self, node: ast.ClassDef) -> None:
        """Fields and methods."""
        full = self.class_name(node)
        mine = {full} if full else None
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name in self.plan.attributes:
                row = self.member(child.name, node, mine)
                if row:
                    self.definition(child, row)
            for d in getattr(child, "decorator_list", []):
                if (
                    isinstance(d, ast.Call)
                    and isinstance(d.func, ast.Name)
                    and d.func.id in ("field_validator", "field_serializer")
                ):
                    for a in d.args:
                        if (
                            isinstance(a, ast.Constant)
                            and a.value in self.plan.attributes
                            and (row := self.member(a.value, node, mine))
                        ):
                            start, end = self.file.span(a)
                            self.edit(start + 1, end - 1, row.new, row)
            targets = (
                [child.target] if isinstance(child, ast.AnnAssign) else child.targets if isinstance(child, ast.Assign) else []
            )
            for t in targets:
                for n in ast.walk(t):
                    if isinstance(n, ast.Name) and n.id in self.plan.attributes and (row := self.member(n.id, node, mine)):
                        self.edit_node(n, n.id, row.new, row)
        inner = node.inner
        for n, scope in self.file.scopes.items():  # uses of a field in the class's own body, such as `Frame.A` -> default = A
            if (
                scope is inner
                and isinstance(n, ast.Name)
                and isinstance(n.ctx, ast.Load)
                and n.id in inner.bound
                and n.id in self.plan.attributes
            ):
                if row := self.member(n.id, node, mine):
                    self.edit_node(n, n.id, row.new, row)

    def member(self, name: str, node: ast.ClassDef, mine: set[str] | None) -> Row | None:
        if mine is None:
            for _, row in self.plan.attributes[name]:
                for owner in self.families.family[row.number]:
                    if self.families.is_protocol(owner):
                        wanted = {m for m in self.families.all_members(owner) if not m.startswith("__")}
                        if wanted <= set(members_of(node)) and len(wanted) > 1:
                            return row
            return None
        for _, row in self.plan.attributes[name]:
            if mine & self.families.family[row.number]:
                return row
        return None

    def match_class(self, node: ast.MatchClass) -> None:
        v = self.tree.value_of(self.file, node.cls)
        for k in node.kwd_attrs if v and v[0] else ():
            if k in self.plan.attributes and self.families.verdict(k, {".".join(v)}, self.file.path):
                report("BY HAND: match", f"{self.file.at(node)}: {k}")

    # calls

    def call(self, node: ast.Call) -> None:
        classes: set[str] | None = None
        function, first = "", None
        value = self.tree.value_of(self.file, node.func)
        key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        if self.types and not self.file.snippet and key in self.types.calls.get(self.file.path, {}):
            classes, function, first = self.types.calls[self.file.path][key]
        if value and value[0]:
            full = ".".join(value)
            if full in self.families.nodes:
                classes = {full}
            elif not function:
                function = full
        called = (
            node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        )
        if called in REPLACES and not classes:
            if called == "_replace" and isinstance(node.func, ast.Attribute):
                classes = self.receiver(node.func)
            else:
                classes = first if first is not None else None
                if classes is None and node.args and hint_of(node.args[0]) in HINTS:
                    classes = self._hinted(hint_of(node.args[0]))
        if not classes and value and value[0] and (passed := self.forwarded().get(value)):
            classes, function = {passed}, ""  # `def stage(**keys): return RlStage(..., **keys)`
        for k in node.keywords:
            if k.arg in self.plan.parameters and (row := self.parameter(k.arg, function, classes)):
                self.keyword(k, row)
            elif k.arg in self.plan.attributes:
                made = bool(classes) and (called in REPLACES or not self._has_init(classes))
                if made:
                    row = self.families.verdict(k.arg, classes, self.file.path)
                    if row:
                        self.keyword(k, row)
                elif classes is None and not function and self.is_candidate(k.arg):
                    report(f"BY HAND: {k.arg}=", f"{self.file.at(node)}: {called}({k.arg}=...)")
        self.reflection(node, called)

    def forwarded(self) -> dict[tuple[str, str], str]:
        """Functions of this file -> the class that their keyword arguments are handed on to."""
        if not hasattr(self, "_forwarded"):
            self._forwarded: dict[tuple[str, str], str] = {}
            for _ in range(2):  # a helper may call a helper
                for f in self.file.tree.body:
                    if not isinstance(f, ast.FunctionDef) or f.args.kwarg is None:
                        continue
                    for node in ast.walk(f):
                        given = node.keywords if isinstance(node, ast.Call) else ()
                        if any(
                            k.arg is None and any(isinstance(n, ast.Name) and n.id == f.args.kwarg.arg for n in ast.walk(k.value))
                            for k in given
                        ):
                            v = self.tree.value_of(self.file, node.func)
                            full = ".".join(v) if v and v[0] else ""
                            if full in self.families.nodes and not self._has_init({full}):
                                self._forwarded[(self.file.module, f.name)] = full
                            elif v in self._forwarded:
                                self._forwarded[(self.file.module, f.name)] = self._forwarded[v]
                        if isinstance(node, ast.Dict) and any(
                            k is None and isinstance(v, ast.Name) and v.id == f.args.kwarg.arg
                            for k, v in zip(node.keys, node.values, strict=True)
                        ):
                            kind = next(
                                (
                                    v.value
                                    for k, v in zip(node.keys, node.values, strict=True)
                                    if isinstance(k, ast.Constant) and k.value == "kind" and isinstance(v, ast.Constant)
                                ),
                                "",
                            )
                            name = {"rl": "RlStage", "sft": "SftStage", "distill": "DistillStage"}.get(kind)
                            full = next((c for c in self.families.nodes if name and c.endswith("." + name)), "")
                            if full:
                                self._forwarded[(self.file.module, f.name)] = full
        return self._forwarded

    def _hinted(self, name: str) -> set[str] | None:
        found = {c for c in self.families.nodes if c.startswith("mmrl.api.") and c.rsplit(".", 1)[-1] == HINTS[name]}
        return found or None

    def is_candidate(self, name: str) -> bool:
        return any(row.public or True for _, row in self.plan.attributes[name])

    def _has_init(self, classes: set[str]) -> bool:
        return any("__init__" in self.families.all_members(c) for c in classes)

    def keyword(self, k: ast.keyword, row: Row) -> None:
        start = self.file.offset(k.lineno, k.col_offset)
        if self.file.text[start : start + len(k.arg)] != k.arg:
            report("BY HAND: can't find the place", f"{self.file.at(k)}: {row}")
            return
        self.edit(start, start + len(k.arg), row.new, row)

    def parameter(self, name: str, function: str, classes: set[str] | None) -> Row | None:
        for full, row in self.plan.parameters[name]:
            if function == full or any(f"{c}.__init__" == full for c in classes or ()):
                return row
        return None

    def parameters(self) -> None:
        """The definitions, and the bodies."""
        for node in ast.walk(self.file.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            scope = self.file.scopes[node]
            name = f"{self.file.module}.{node.name}"
            if scope.kind == "class":
                cls = next((n for n in ast.walk(self.file.tree) if getattr(n, "inner", None) is scope), None)
                name = f"{getattr(cls, 'full', '?')}.{node.name}"
            elif scope is not self.file.root:
                continue
            for old, entries in self.plan.parameters.items():
                for full, row in entries:
                    if full != name or self.file.snippet:
                        continue
                    args = [a for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs] if a.arg == old]
                    if not args:
                        report("NOT FOUND", f"{row}: no such parameter")
                        continue
                    if row.new in node.inner.bound or row.new in node.inner.used:
                        report("REFUSED: shadowed in its own module", f"{self.file.at(node)}: {row}")
                        continue
                    start = self.file.offset(args[0].lineno, args[0].col_offset)
                    self.edit(start, start + len(old), row.new, row)
                    for n, s in self.file.scopes.items():
                        if isinstance(n, ast.Name) and n.id == old and lookup(s, old) is node.inner:
                            self.edit_node(n, old, row.new, row)
                    doc = (
                        node.body[0]
                        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
                        else None
                    )
                    if doc is not None and isinstance(doc.value.value, str):
                        a, b = self.file.span(doc)
                        for m in re.finditer(
                            rf"(?<![\w`.]){re.escape(old)}(?=(, [\w, ]+)?: )|(?<=`){re.escape(old)}(?=`)", self.file.text[a:b]
                        ):
                            self.edit(a + m.start(), a + m.end(), row.new, row)

    def reflection(self, node: ast.Call, called: str) -> None:
        """setattr(x, "name"), monkeypatch.setattr(x, "name", ...), getattr(x, "name"), patch.object(x, "name")."""
        if called not in (
            "setattr",
            "getattr",
            "hasattr",
            "delattr",
            "object",
            "methodcaller",
            "attrgetter",
            "__setattr__",
            "__getattr__",
        ):
            return
        args = node.args
        for k, a in enumerate(args):
            if not (isinstance(a, ast.Constant) and isinstance(a.value, str)):
                continue
            if k == 0:
                continue
            value = self.tree.value_of(self.file, args[k - 1])
            row = None
            if value and value[0] == "":
                c = self.tree.canonical(value[1], a.value)
                row = self.plan.names.get(c) if c else None
                if row and a.value != row.old:
                    row = None
            elif a.value in self.plan.attributes:
                owner = {".".join(value)} if value and value[0] and ".".join(value) in self.families.nodes else None
                if owner is None and isinstance(args[k - 1], ast.Name) and args[k - 1].id == "self":
                    fake = ast.copy_location(ast.Attribute(value=args[k - 1], attr=a.value, ctx=ast.Load()), args[k - 1])
                    owner = self.receiver(fake)
                if owner is None:
                    owner = self.argument_type(node, k - 1)
                row = self.families.verdict(a.value, owner, self.file.path, hint_of(args[k - 1]))
                if row is False:
                    report(f"BY HAND: .{a.value}", f"{self.file.at(node)}: {ast.unparse(node)[:80]}")
            if row:
                start, end = self.file.span(a)
                if self.file.text[start + 1 : end - 1] == a.value:
                    self.edit(start + 1, end - 1, row.new, row)
            return

    def looped(self) -> None:
        """for name in ("low", "high"): getattr(spec, name)."""
        for node in ast.walk(self.file.tree):
            loops: list[tuple[ast.AST, ast.AST]] = []
            if isinstance(node, ast.For):
                loops = [(node.target, node.iter)]
            elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
                loops = [(g.target, g.iter) for g in node.generators]
            for target, source in loops:
                if not isinstance(source, ast.Tuple | ast.List | ast.Set):
                    continue
                names = [target] if isinstance(target, ast.Name) else target.elts if isinstance(target, ast.Tuple) else []
                for place, name in enumerate(names):
                    if not isinstance(name, ast.Name):
                        continue
                    words = (
                        source.elts
                        if name is target
                        else [e.elts[place] for e in source.elts if isinstance(e, ast.Tuple) and len(e.elts) > place]
                    )
                    words = [
                        w
                        for w in words
                        if isinstance(w, ast.Constant) and isinstance(w.value, str) and w.value in self.plan.attributes
                    ]
                    for call in ast.walk(node) if words else ():
                        if not (
                            isinstance(call, ast.Call)
                            and isinstance(call.func, ast.Name)
                            and call.func.id in ("getattr", "hasattr", "setattr")
                        ):
                            continue
                        if len(call.args) < 2 or not isinstance(call.args[1], ast.Name) or call.args[1].id != name.id:
                            continue
                        owner = self.argument_type(call, 0)
                        if isinstance(call.args[0], ast.Name) and call.args[0].id == "self":
                            fake = ast.copy_location(ast.Attribute(value=call.args[0], attr="x", ctx=ast.Load()), call.args[0])
                            owner = self.receiver(fake) or owner
                        for w in words:
                            row = self.families.verdict(w.value, owner, self.file.path, hint_of(call.args[0]))
                            a, b = self.file.span(w)
                            if row and self.file.text[a + 1 : b - 1] == w.value:
                                self.edit(a + 1, b - 1, row.new, row)
                            elif row is False:
                                report(f"BY HAND: .{w.value}", f"{self.file.at(w)}: {ast.unparse(call)[:80]}")

    def argument_type(self, node: ast.Call, k: int) -> set[str] | None:
        if k == 0 and self.types and not self.file.snippet:
            key = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            return self.types.calls.get(self.file.path, {}).get(key, (None, "", None))[2]
        return None


def hint_of(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


# -- texts --------------------------------------------------------------------------------------------------------------------

DOT = r"\\*\."  # in a pattern of a test it is escaped
DOTTED = re.compile(r"(?<![\w/.\-])((?:mmrl|mmrl_\w+|tests)(?:\.[A-Za-z_]\w*)+)(:[A-Za-z_][\w.]*)?")
TICKED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(\([^`\n]*\))?`(?!`)")


class Texts:
    """Docstrings, comments, strings and pages."""

    def __init__(self, tree: Tree, plan: Plan, families: Families) -> None:
        self.tree, self.plan, self.families = tree, plan, families
        self.by_class = defaultdict(dict)  # simple class name -> old attribute -> row
        for old, entries in plan.attributes.items():
            for _, row in entries:
                for c in families.family[row.number]:
                    self.by_class[c.rsplit(".", 1)[-1]][old] = row
        self.classes = defaultdict(set)  # simple name -> rows of functions and classes
        for (module, name), row in plan.names.items():
            self.classes[name].add(row)
        self.dotted_keys = []
        for row in plan.keys:
            for one in row.where.split("|"):
                section = SECTIONS.get(one.partition(":")[2])
                if section is None:
                    report("NOT FOUND", f"{row}: no section is known for {one}")
                    continue
                head, _, tail = section.partition(".")
                if head in ("stages", "tasks"):
                    index = rf"(?:{DOT}(?:\d+|N|-1|\*|\{{[^{{}}]*\}}))?"
                    pattern = (
                        rf"(?<![\w.]){head}{index}{DOT + re.escape(tail) if tail else ''}{DOT}({re.escape(row.old)})(?![\w])"
                    )
                    pattern += "|" + rf"\[\[?stages{re.escape('.' + tail) if tail else ''}\]\]? ({re.escape(row.old)})\b"
                    if tail:
                        pattern += "|" + rf"(?<![\w.])(?:{re.escape(tail)})\.({re.escape(row.old)})(?![\w])"
                else:
                    pattern = (
                        rf"(?<![\w.]){DOT.join(map(re.escape, section.split('.')))}{DOT}({re.escape(row.old)})(?![\w(])"
                        if section
                        else rf"(?!x)x({row.old})"
                    )
                self.dotted_keys.append((re.compile(pattern), row))
        self.words = set()  # identifiers that strings are
        for file in tree.files.values():
            for node in ast.walk(file.tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                    self.words.add(node.value)
        self.plain_keys = [r for r in plan.keys if "_" in r.old and self._unique_key(r)]
        self.key_equals = []
        for row in plan.keys:
            owners = families.owners.get(row.old, set())
            sections = {o for o in owners if o.startswith("mmrl.config.")}
            if sections <= families.family[row.number]:
                self.key_equals.append(
                    (re.compile(rf"(?<![\w.\-]){re.escape(row.old)}(?= = )"), row, owners <= families.family[row.number])
                )
            else:
                report(
                    "config keys that only dotted texts follow",
                    f"{row}: {', '.join(sorted(sections - families.family[row.number]))} has it too",
                )

    def _unique_key(self, row: Row) -> bool:
        owners = self.families.owners.get(row.old, set())
        if owners <= self.families.family[row.number]:
            return True
        report(
            "config keys that only dotted texts follow",
            f"{row}: {', '.join(sorted(owners - self.families.family[row.number])[:4])} has it too",
        )
        return False

    def spans(self, text: str, where: str, file: File | None, page: bool) -> list[tuple[int, int, str, Row]]:
        """What of a text is to be replaced."""
        found: list[tuple[int, int, str, Row]] = []
        for m in DOTTED.finditer(text):
            path, colon = m[1], (m[2] or "")[1:]
            found += self._dotted(path, colon, m.start(1), m.start(2) + 1 if m[2] else 0)
        for m in TICKED.finditer(text):
            if "mmrl." not in m[1] or m[1].split(".")[0] not in ("mmrl",):
                found += self._ticked(m[1], m.start(1), where, file, page)
        for pattern, row in self.dotted_keys:
            for m in pattern.finditer(text):
                group = next((g for g in range(1, (m.lastindex or 0) + 1) if m[g]), None)
                if group:
                    found.append((m.start(group), m.end(group), row.new, row))
        inside = where.startswith(("mmrl/config/", "mmrl/train/checks/", "tests/config/"))
        for pattern, row, alone in self.key_equals:
            for m in pattern.finditer(text):
                if alone or inside or page and text[m.start() - 1 : m.start()] in "`,( ":
                    if not page or text.count("`", text.rfind("\n", 0, m.start()) + 1, m.start()) % 2:
                        found.append((m.start(), m.end(), row.new, row))
        for row in self.plain_keys:
            for m in re.finditer(rf"(?<![\w.\-/]){row.old}(?![\w(])", text):
                found.append((m.start(), m.end(), row.new, row))
        unique: dict[tuple[int, int], tuple] = {}
        for one in found:
            unique.setdefault(one[:2], one)
        for a, b, new, row in list(unique.values()):
            if fix := article(text, a, text[a:b], new):
                unique.setdefault(fix[:2], (*fix, None))
        return list(unique.values())

    def _dotted(self, path: str, colon: str, start: int, colon_start: int):
        parts = self.tree.dotted(path)
        if parts is None:
            return
        module, name, rest = parts
        if not name and colon:
            name, _, rest = colon.partition(".")
            at = colon_start
        else:
            at = start + len(module) + 1
        if not name:
            return
        c = self.tree.canonical(module, name)
        row = self.plan.names.get(c) if c else None
        if row and name == row.old:
            yield at, at + len(name), row.new, row
        attribute = rest.split(".")[0]
        if attribute and c and attribute in self.plan.attributes:
            got = self.families.verdict(attribute, {".".join(c)}, "")
            if got:
                b = at + len(name) + 1
                yield b, b + len(attribute), got.new, got

    def _ticked(self, name: str, start: int, where: str, file: File | None, page: bool):
        first, _, rest = name.partition(".")
        attribute = rest.split(".")[0]
        if attribute:
            row = self.by_class.get(first, {}).get(attribute)
            if row:
                b = start + len(first) + 1
                yield b, b + len(attribute), row.new, row
        if file is not None and (found := file.root.bound.get(first)):
            c = None
            for b in found:
                c = (
                    self.tree.canonical(b[1], b[2])
                    if b[0] == "from"
                    else (file.module, first)
                    if b[0] in ("def", "assign")
                    else ("", b[1])
                    if b[0] == "module"
                    else None
                )
            if c and c[0] == "" and attribute:
                c2 = self.tree.canonical(c[1], attribute)
                row = self.plan.names.get(c2) if c2 else None
                if row and row.old == attribute:
                    b = start + len(first) + 1
                    yield b, b + len(attribute), row.new, row
            row = self.plan.names.get(c) if c else None
            if row and row.old == first:
                yield start, start + len(first), row.new, row
            return
        near = [m for m in self.tree.modules if m.startswith("mmrl.") and m.endswith("." + first)]
        if attribute and len(near) == 1 and (row := self.plan.names.get((near[0], attribute))):  # `module.name`
            b = start + len(first) + 1
            yield b, b + len(attribute), row.new, row
            if near[0] in self.plan.modules:
                moved = self.plan.modules[near[0]]
                yield start, start + len(first), moved.new.rsplit(".", 1)[-1], moved
            return
        rows = self.classes.get(first)
        if not rows:
            return
        named = first[:1].isupper() or first.count("_") > 1 or ("_" in first and first not in self.words)
        if len(rows) == 1 and len(self.plan.definitions[first]) == 1 and named:
            row = next(iter(rows))
            yield start, start + len(first), row.new, row
        elif page or first[:1].isupper() or "_" in first:
            report(f"BY HAND: `{first}` in texts", f"{where}: `{name}`")


VOWELS = tuple("aeiouAEIOU")


def article(text: str, a: int, old: str, new: str) -> tuple[int, int, str] | None:
    """ "a `Mark`" becomes "an `Overlay`"."""
    m = re.search(r"\b([Aa])(n?) `$", text[:a])
    if m is None or new.startswith(VOWELS) == bool(m[2]):
        return None
    return m.end(1), m.end(1) + len(m[2]), "n" if new.startswith(VOWELS) else ""


def python_texts(file: File, texts: Texts, make) -> None:
    """Tokens that are strings or comments; strings that hold Python are read as such."""
    attribute_docs = class_spans(file)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(file.text).readline))
    except (tokenize.TokenError, IndentationError):
        return
    for token in tokens:
        if token.type not in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            continue
        start = file.starts[token.start[0] - 1] + token.start[1]
        text = token.string
        where = f"{file.path}:{token.start[0]}"
        if token.type == tokenize.STRING:
            m = re.match(r"(?i)([rbuf]*)('''|\"\"\"|'|\")", text)
            prefix, quote = m[1].lower(), m[2]
            inside = text[m.end() : len(text) - len(quote)]
            if "f" in prefix and "import" not in inside:
                pass
            if exact(file, texts, inside, start + m.end(), where, prefix):
                continue
            if len(quote) == 3 and "b" not in prefix and re.search(r"^\s*(from|import) mmrl", inside, re.M):
                if "f" not in prefix:  # read as if it were raw: names stand where they stand
                    if make(file, inside, start + m.end(), where):
                        continue
                else:
                    report("BY HAND: Python in a string", where)
            toml(texts, inside, file.base + start + m.end(), file.path)
        own: set[tuple[int, int]] = set()
        for lo, hi, rows in attribute_docs:  # `field` in the class's own docstrings
            if lo <= start < hi:
                for m in TICKED.finditer(text):
                    row = rows.get(m[1])
                    if row:
                        own.add((m.start(1), m.end(1)))
                        edits.add(file.path, file.base + start + m.start(1), file.base + start + m.end(1), row.new, row)
        for a, b, new, row in texts.spans(text, where, file, False):
            if (a, b) not in own:
                edits.add(file.path, file.base + start + a, file.base + start + b, new, row)


def class_spans(file: File):
    families = Texts.current.families
    out = []
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ClassDef) and hasattr(node, "full"):
            rows = {}
            for old, entries in Texts.current.plan.attributes.items():
                for _, row in entries:
                    if node.full in families.family[row.number]:
                        rows[old] = row
            if rows:
                out.append((*file.span(node), rows))
    return out


def exact(file: File, texts: Texts, inside: str, start: int, where: str, prefix: str) -> bool:
    """A string that is a metric, a column, an option or an attribute's name."""
    for row in texts.plan.texts:
        files = [] if row.where == "*" else row.where.split(",")
        if files and not any(file.path == f or file.path.startswith(f.rstrip("*")) and f.endswith("*") for f in files):
            continue
        if inside == row.old:
            edits.add(file.path, file.base + start, file.base + start + len(inside), row.new, row)
            return True
        if row.kind == "metric":
            if "f" in prefix and (row.old.startswith("/") or row.old.endswith("/")):
                for m in re.finditer(
                    rf"(?<=\}}){re.escape(row.old)}(?=$|\{{)" if row.old.startswith("/") else rf"^{re.escape(row.old)}(?=\{{)",
                    inside,
                ):
                    edits.add(file.path, file.base + start + m.start(), file.base + start + m.end(), row.new, row)
            for m in re.finditer(rf"(?<=`){re.escape(row.old)}(?=`)", inside):
                edits.add(file.path, file.base + start + m.start(), file.base + start + m.end(), row.new, row)
    for row in texts.plan.options:
        own = file.module == row.where
        pattern = rf"(?<![\w-]){re.escape(row.old)}(?![\w-])"
        if row.old in inside and (own or file.path.startswith("tests/") or f"mmrl {row.where.rsplit('.', 1)[-1]} " in inside):
            for m in re.finditer(pattern, inside):
                if own and inside == row.old:
                    parameter = row.old.lstrip("-").replace("-", "_")
                    edits.add(
                        file.path, file.base + start - 1, file.base + start + len(inside) + 1, f'"{row.new}", "{parameter}"', row
                    )
                    report(
                        "BY HAND: an option's parameter",
                        f"{where}: {row.old} -> {row.new} keeps the parameter {parameter}: drop the second name where it was given already",
                    )
                else:
                    edits.add(file.path, file.base + start + m.start(), file.base + start + m.end(), row.new, row)
    if inside.count("_") > 1 and len(texts.classes.get(inside, ())) == 1 == len(
        texts.plan.definitions[inside]
    ):  # such as a check's name
        row = next(iter(texts.classes[inside]))
        edits.add(file.path, file.base + start, file.base + start + len(inside), row.new, row)
        return True
    if inside in texts.plan.attributes and inside.isidentifier():
        report(f"LOOK: the string {inside!r} is an attribute's old name", where)
    return False


def toml(texts: Texts, text: str, base: int, path: str) -> None:
    """Keys of run files, by their section."""
    if not texts.plan.keys or "=" not in text:
        return
    section, offset, stage = None, 0, ""
    known = {}
    for row in texts.plan.keys:
        for one in row.where.split("|"):
            known.setdefault((SECTIONS.get(one.partition(":")[2]), row.old), row)
    for line in text.splitlines(keepends=True):
        m = re.match(r"\s*\[\[?([\w.]+)\]?\]", line)
        if m:
            section = m[1]
        elif m := re.match(r"\s*(?:(\w[\w.]*)\.)?(\w+)(?=\s*=[^=])", line):
            full = ".".join(filter(None, (section, m[1])))
            row = known.get((full, m[2]))
            if row and section is not None or row and full:
                edits.add(path, base + offset + m.start(2), base + offset + m.end(2), row.new, row)
            for inline in re.finditer(r"(?<=[{,])\s*(\w+)(?=\s*=)", line):
                row = known.get((".".join(filter(None, (full, m[2]))), inline[1])) or known.get((f"{full}.{m[2]}", inline[1]))
                if row:
                    edits.add(path, base + offset + inline.start(1), base + offset + inline.end(1), row.new, row)
        offset += len(line)


def page(path: str, text: str, texts: Texts, make) -> None:
    """Markdown, TOML and what else is text."""
    done: list[tuple[int, int]] = []
    if path.endswith(".md"):
        for m in re.finditer(r"^([ ]*)```(\w*)\n(.*?)^\1```", text, re.M | re.S):
            start = m.start(3)
            if m[2] == "python":
                if make(None, m[3], start, f"{path}:{text.count(chr(10), 0, start) + 1}", path):
                    done.append((start, m.end(3)))
            elif m[2] == "toml":
                toml(texts, m[3], start, path)
        for row in texts.plan.texts:
            files = [] if row.where == "*" else row.where.split(",")
            if files and path not in files:
                continue
            pattern = row.old.replace("*", r"(?:\*|<[^>`]+>)") if row.kind == "metric" else None
            for m in re.finditer(
                rf"(?<=`)({pattern or re.escape(row.old)})(?=`)" if not pattern else rf"(?<=[`\"])({pattern})(?=[`\"])", text
            ):
                new = row.new
                edits.add(path, m.start(1), m.end(1), new, row)
        for row in texts.plan.options:
            command = row.where.rsplit(".", 1)[-1]
            for m in re.finditer(rf"(?<![\w-]){re.escape(row.old)}(?![\w-])", text):
                line = text[text.rfind("\n", 0, m.start()) + 1 : text.find("\n", m.end())]
                if f"mmrl {command}" in line:
                    edits.add(path, m.start(), m.end(), row.new, row)
                else:
                    report(f"BY HAND: {row.old} in pages", f"{path}:{text.count(chr(10), 0, m.start()) + 1}")
    elif path.endswith(".toml"):
        toml(texts, text, 0, path)
    elif path.endswith((".js", ".css", ".html", ".jsonl", ".json")):
        for row in texts.plan.texts:
            if row.where != "*" and path not in row.where.split(","):
                continue
            for m in re.finditer(rf"(?<=[\"'`]){re.escape(row.old)}(?=[\"'`])", text):
                edits.add(path, m.start(), m.end(), row.new, row)
        return
    for a, b, new, row in texts.spans(text, path, None, True):
        if not any(lo <= a < hi for lo, hi in done):
            edits.add(path, a, b, new, row)


# -- modules ------------------------------------------------------------------------------------------------------------------


def move_modules(root: Path, plan: Plan, rows: dict[str, Row], dry: bool) -> None:
    """Files move and whoever names them follows; the tree is read anew, after the names."""
    if not rows:
        return
    tree = Tree(root, [])
    mapping = {old: row.new for old, row in rows.items()}

    def new_of(module: str) -> str | None:
        parts = module.split(".")
        for k in range(len(parts), 0, -1):
            head = ".".join(parts[:k])
            if head in mapping:
                return ".".join([mapping[head], *parts[k:]])
        return None

    paths: dict[str, str] = {}
    for path, file in tree.files.items():
        if new := new_of(file.module):
            paths[path] = tree.base_of(path) + new.replace(".", "/") + ("/__init__.py" if file.is_package else ".py")
    local = Edits()
    for path, file in tree.files.items():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom):
                source = imported_from(file, node)
                if node.level:
                    if any(new_of(f"{source}.{a.name}") for a in node.names) or new_of(source) or new_of(file.module):
                        report("BY HAND: relative import", file.at(node))
                    continue
                groups: dict[str, list[str]] = defaultdict(list)
                changed = False
                for a in node.names:
                    new = new_of(f"{source}.{a.name}") if f"{source}.{a.name}" in tree.packages else None
                    if new and not (source in tree.modules and a.name in tree.modules[source].root.bound):
                        package, base = new.rsplit(".", 1)
                        bound = a.asname or a.name
                        keep = a.asname if a.asname and a.asname != base else None
                        scope = file.scopes[node]
                        if not a.asname and base != a.name:
                            users = [
                                n
                                for n, s in file.scopes.items()
                                if isinstance(n, ast.Name) and n.id == bound and lookup(s, bound) is scope
                            ]
                            clash = base in scope.bound or any(
                                base in s.bound for n in users for s in chain(file.scopes[n], scope)
                            )
                            if clash:
                                keep = bound
                                report("kept the old name by `as`", f"{file.at(node)}: module {a.name} -> {base}")
                            else:
                                for n in users:
                                    local.add(path, *file.span(n), base)
                        groups[package].append(base + (f" as {keep}" if keep else ""))
                        changed = True
                        report.done[(rows_number(rows, f"{source}.{a.name}"),)] += 1
                    elif new := new_of(source):
                        groups[new].append(a.name + (f" as {a.asname}" if a.asname else ""))
                        changed = True
                    else:
                        groups[source].append(a.name + (f" as {a.asname}" if a.asname else ""))
                if changed:
                    indent = "\n" + " " * node.col_offset
                    text = indent.join(f"from {m} import {', '.join(ns)}" for m, ns in sorted(groups.items()))
                    local.add(path, *file.span(node), text)
            elif isinstance(node, ast.Import):
                for a in node.names:
                    if new := new_of(a.name):
                        start, _ = file.span(a)
                        local.add(path, start, start + len(a.name), new)
            elif isinstance(node, ast.Attribute):
                chain_, n = [], node
                while isinstance(n, ast.Attribute):
                    chain_.append(n.attr)
                    n = n.value
                if (
                    isinstance(n, ast.Name)
                    and (s := lookup(file.scopes[n], n.id))
                    and any(b[0] == "module" and b[1] == n.id for b in s.bound[n.id])
                ):
                    full = ".".join([n.id, *reversed(chain_)])
                    if full in mapping:
                        local.add(path, *file.span(node), mapping[full])

    def text_of(text: str) -> str:
        def sub(m):
            found = tree.dotted(m[1])
            if not found or not (new := new_of(found[0])):
                return m[0]
            return new + m[1][len(found[0]) :] + (m[2] or "")

        def psub(m):
            return paths.get(m[0], m[0])

        out = []
        bases: dict[str, str] = {}
        for line in text.split("\n"):
            if line.strip() in ("```", '"""', '""",', '""")'):
                bases = {}
            for old, new in bases.items():
                line = re.sub(rf"(?<![\w.`]){old}(?=\.\w)", new, line)
            m = re.match(r"\s*from (mmrl[\w.]*) import (\w+)$", line)
            if m and f"{m[1]}.{m[2]}" in mapping:  # of a page, or of Python in a string
                bases[m[2]] = mapping[f"{m[1]}.{m[2]}"].rsplit(".", 1)[-1]
                line = line[: m.start(2)] + bases[m[2]]
            if not re.match(r"\s*(from|import) mmrl[\w.]*( import| as|$)", line):
                line = re.sub(r"(?<![\w/.\-])((?:mmrl|mmrl_\w+|tests)(?:\.[A-Za-z_]\w*)+)(:[A-Za-z_][\w.]*)?", sub, line)
            else:
                line = re.sub(r"(?<=(?:from|port) )(mmrl[\w.]*)", lambda m: new_of(m[1]) or m[1], line, count=1)
            out.append(re.sub(r"(?<![\w/.])(?:mmrl|plugins|sims|tests)/[\w/]+\.py\b", psub, line))
        return "\n".join(out)

    for p in tree.tracked:
        q = root / p
        if p in tree.files:
            text = text_of(local.apply(p, tree.files[p].text))
        elif q.suffix in (".md", ".toml", ".sh", ".js", ".css", ".html", ".txt", "") and q.name != "LICENSE":
            try:
                text = text_of(q.read_text())
            except UnicodeDecodeError:
                continue
        else:
            continue
        if not dry and text != q.read_text():
            q.write_text(text)
    for old, new in paths.items():
        if not dry:
            (root / new).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "-C", str(root), "mv", old, new], check=True)


def chain(scope: Scope, until: Scope):
    while scope is not None and scope is not until:
        yield scope
        scope = scope.parent


def rows_number(rows: dict[str, Row], module: str) -> int:
    parts = module.split(".")
    for k in range(len(parts), 0, -1):
        if row := rows.get(".".join(parts[:k])):
            return row.number
    return 0


# -- all together -------------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--no-types", action="store_true", help="without mypy: attributes only where their name is unique")
    parser.add_argument("--cache", default=".mypy_cache")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--changelog", action="store_true", help="print the public rows as Markdown and stop")
    given = parser.parse_args()
    rows = read_table(given.table, set(filter(None, given.only.split(","))))
    if given.changelog:
        for kind in KINDS:
            for row in rows:
                if row.kind == kind and row.public:
                    print(f"- {kind} `{'' if row.where == '*' else row.where + ' '}{row.old}` is now `{row.new}`: {row.why}")
        print("\nRENAMED_KEYS = {  # for the message that refuses an old key")
        for row in rows:
            if row.kind == "config-key":
                section = SECTIONS.get(row.where.partition(":")[2], "?")
                print(f'    "{section}{"." * bool(section)}{row.old}": "{row.new}",')
        print("}")
        return 0
    sys.setrecursionlimit(10_000)
    root = given.root.resolve()
    tree = Tree(root, rows)
    plan = Plan(tree, rows)
    types = None
    if not given.no_types and (plan.attributes or plan.parameters):
        types = types_of(tree, given.cache)
        if types.errors:
            print(f"mypy has {len(types.errors)} errors; the first: {types.errors[0]}", file=sys.stderr)
    families = Families(tree, plan, types)
    if types:  # attributes of the same name on classes that aren't ours
        foreign: dict[str, set[str]] = defaultdict(set)
        for path, members in types.members.items():
            file = tree.files[path]
            for node in ast.walk(file.tree):
                if isinstance(node, ast.Attribute) and node.attr in plan.attributes:
                    found = members.get((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset))
                    foreign[node.attr] |= {c for c in found or () if c not in families.nodes and c not in types.mro}
        Families.foreign = foreign
    texts = Texts(tree, plan, families)
    Texts.current = texts

    def make(outer: File | None, inside: str, start: int, where: str, path: str = "") -> bool:
        """Python in a string or a page."""
        dedented = textwrap.dedent(inside)
        body = inside
        pad = 0
        if dedented != inside:  # as a block, so that positions stay
            lead = re.match(r"\s*\n", inside)
            body = ("if True:" + inside) if lead else "if True:\n" + inside
            pad = len(body) - len(inside)
        try:
            file = File(outer.path if outer else path, body, "<text>", base=(outer.base if outer else 0) + start - pad or 1)
        except (SyntaxError, ValueError):
            report("BY HAND: Python in a text that can't be parsed", where)
            return False
        file.snippet = True
        bind(file)
        file.at = lambda node: where
        Python(file, tree, plan, families, None).run()
        python_texts(file, texts, lambda *a: False)
        return True

    for file in tree.files.values():
        Python(file, tree, plan, families, types).run()
        python_texts(file, texts, make)
    pages: dict[str, str] = {}
    for p in tree.tracked:
        q = root / p
        if (
            p not in tree.files
            and q.suffix in (".md", ".toml", ".sh", ".js", ".css", ".html", ".txt", ".jsonl", ".json", "")
            and "uplot" not in p
        ):
            try:
                pages[p] = q.read_text()
            except UnicodeDecodeError:
                continue
            page(p, pages[p], texts, make)
    changed = 0
    for p in sorted(edits.by_path):
        text = tree.files[p].text if p in tree.files else pages[p]
        new = edits.apply(p, text)
        if p in tree.files:
            try:
                ast.parse(new)
            except SyntaxError as error:
                report("REFUSED: would not parse", f"{p}: {error}")
                continue
        if new != text:
            changed += 1
            if not given.dry_run:
                (root / p).write_text(new)
    move_modules(root, plan, plan.modules, given.dry_run)
    for row in rows:
        if (
            not report.done.get((row.number,))
            and row.kind != "module"
            and not any(str(row) in line for line in report.lines["NOT FOUND"])
        ):
            report("WITHOUT EFFECT", str(row))
    out = [f"{changed} files, {sum(report.done.values())} places"]
    for section in sorted(report.lines):
        out.append(f"\n== {section} ({len(report.lines[section])})")
        most = 25 if section.startswith("LOOK") else 400
        out += [f"  {line}" for line in report.lines[section][:most]] + (
            [f"  and {len(report.lines[section]) - most} more"] if len(report.lines[section]) > most else []
        )
    text = "\n".join(out)
    if given.report:
        given.report.write_text(text + "\n")
        print(out[0])
        print("\n".join(f"{len(v):5} {k}" for k, v in sorted(report.lines.items())))
    else:
        print(text)
    return 1 if any(s.startswith("REFUSED") for s in report.lines) else 0


if __name__ == "__main__":
    sys.exit(main())
