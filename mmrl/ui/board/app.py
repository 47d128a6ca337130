"""The board's web application: routes and their responses. It is read-only."""

from __future__ import annotations

import contextlib
import io
import json
import time
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mmrl.api.errors import UserError, shorten
from mmrl.api.media.image_limits import MAX_FILE
from mmrl.run_folder.figures import SHARES
from mmrl.run_folder.files import contents
from mmrl.run_folder.validated import to_storable
from mmrl.ui.board import pages, rollouts, run_queries, sections
from mmrl.ui.board.access import AccessMiddleware
from mmrl.ui.board.live_updates import UpdateHub
from mmrl.ui.board.run_paths import NotFound, RunPaths
from mmrl.ui.board.search import Wanted
from mmrl.ui.board.state import State, state, state_in_list
from mmrl.ui.report.media_sources import video_frames

STATIC = Path(__file__).with_name("static")
SHARED = Path(__file__).parent.parent / "report"
"""Folder of the style sheet and script that the board shares with reports."""
MOST_POINTS, MOST_KEYS, MOST_RUNS = 4000, 64, 8
PATIENCE = 5.0
"""Seconds that a list of runs may read run folders."""
WAIT = 0.5
"""Seconds that a page waits for the index of a run."""
FRAMES = 1024
"""Maximal number of frames of a video that are served."""


class Board:
    """State shared by all routes."""

    def __init__(self, places: RunPaths) -> None:
        self.places, self.hub = places, UpdateHub(places)

    def run(self, request: Request, seconds: float = WAIT) -> tuple[str, Path, State]:
        """(name, folder, state) of the requested run, which is indexed from now on. seconds: to wait for its index. Raises
        NotThere if it is no run."""
        name = next(iter(request.query_params.getlist("run")), "")
        path = self.places.run(name)
        try:
            current = state(name, path)
        except FileNotFoundError:
            raise NotFound(f"the folder of {name} has vanished") from None
        self.hub.ask(name, seconds)
        return name, path, current

    def other(self, request: Request) -> tuple[str, Path | None]:
        """(name, folder) of the second run of a comparison, from the field `with` or a second `run`; ("", None) without one."""
        given = request.query_params.getlist("run")[1:2]
        name = request.query_params.get("with") or (given[0] if given else "")
        return (name, self.places.run(name)) if name else ("", None)


def app(places: RunPaths, token: str = "") -> Starlette:
    """The application for a folder of runs. token: the secret that requests must have; empty: only requests from this machine are
    accepted."""
    board = Board(places)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        board.hub.start()
        try:
            yield
        finally:
            board.hub.stop()

    async def live(request: Request) -> Response:
        return _live(board, request)

    def route(path: str, answer: Callable[[Board, Request], Response], json_errors: bool = False) -> Route:
        def endpoint(request: Request) -> Response:  # not async, so that it runs in a thread
            return answered(answer, board, request, json_errors)

        return Route(path, endpoint)

    routes = [
        route("/", _runs), route("/curves", _curves), route("/rollouts", _rollouts), route("/rollout", _rollout),
        route("/episodes", _episodes), route("/alarms", _alarms), route("/compare", _compare), route("/settings", _settings),
        route("/part/row", _part_row), route("/part/groups", _part_groups),
        route("/api/runs", _api_runs, True), route("/api/curves", _api_curves, True), route("/api/series", _api_series, True),
        route("/api/steps", _api_steps, True), route("/media", _media), route("/media/frame", _frame), route("/text", _text),
        Route("/api/live", live),
        Route("/static/page.css", lambda request: FileResponse(SHARED / "page.css", media_type="text/css")),
        Route("/static/page.js", lambda request: FileResponse(SHARED / "page.js", media_type="text/javascript")),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]  # fmt: skip
    application = Starlette(routes=routes, middleware=[Middleware(AccessMiddleware, token=token)], lifespan=lifespan)
    application.state.hub = board.hub
    return application


def answered(answer: Callable[[Board, Request], Response], board: Board, request: Request, as_json: bool) -> Response:
    """The response of `answer`, or a response with its error in one line. as_json: whether errors are JSON."""
    try:
        return answer(board, request)
    except NotFound as error:
        what, code = str(error), 404
    except (UserError, OSError) as error:
        what, code = shorten(error), 422
    except Exception as error:  # noqa: BLE001  the page shows the error, the board's terminal the traceback
        traceback.print_exc()
        what, code = f"a bug in the board: {type(error).__name__}: {shorten(error)}", 500
    if as_json:
        return JSONResponse({"error": what}, code)
    if request.url.path.startswith("/part/"):
        return HTMLResponse(pages.failure(what), code)
    return HTMLResponse(pages.page("runs", "Error", pages.failure(what) + '<p><a href="/">All runs</a></p>'), code)


# -- pages --------------------------------------------------------------------------------------------------------------


def _states(board: Board) -> tuple[list[State], str]:
    """(states of the listed runs, what is left out as a sentence). States are remembered, so a list that took too long is whole
    after some requests."""
    names, left_out = board.places.listed()
    end = time.monotonic() + PATIENCE
    states = []
    for name in names:
        if time.monotonic() > end:
            states.append(State(name=name, state="not read", why="reading the runs takes long: reload this page"))
        elif found := _in_list(board, name):
            states.append(found)
    return states, left_out


def _in_list(board: Board, name: str) -> State | None:
    """The state of a run for the list, whatever is wrong with it; None if there is no such run."""
    found, skipped = state_in_list(name, board.places), board.hub.skipped(name)
    return replace(found, why=skipped) if found and skipped else found


def _runs(board: Board, request: Request) -> Response:
    folder = board.places.folder
    states, left_out = _states(board)
    return HTMLResponse(pages.page("runs", f"Runs in {folder.name or folder}/", pages.runs(states, str(folder), left_out)))


def _shown(kind: str, run: str, current: State, body: str, title: str = "") -> Response:
    return HTMLResponse(pages.page(kind, title or run, body, state=current, run=run))


def _curves(board: Board, request: Request) -> Response:
    run, _, current = board.run(request)
    names = request.query_params.getlist("run")[:MOST_RUNS]
    for name in names[1:]:
        board.places.run(name)
    others = [name for name in board.places.names() if name not in names]
    if why := board.hub.gone.get(run):
        current = replace(current, why=current.why or f"indexing failed: {why}")
    return _shown("curves", run, current, sections.curves(current, names, others))


def _rollouts(board: Board, request: Request) -> Response:
    run, path, current = board.run(request)
    wanted = Wanted.of(request.query_params)
    return _shown(
        "rollouts", run, current, pages.filters(run, wanted, *rollouts.choices(path)) + _listed(board, run, path, wanted)
    )


def _listed(board: Board, run: str, path: Path, wanted: Wanted) -> str:
    return rollouts.listed(run, path, wanted, board.hub.gone.get(run, ""))


def _rollout(board: Board, request: Request) -> Response:
    run, path, current = board.run(request, 0.0)
    title, body = rollouts.alone(run, path, request.query_params.get("id", ""))
    return _shown("rollout", run, current, body, f"{run}: {title}")


def _episodes(board: Board, request: Request) -> Response:
    run, path, current = board.run(request, 0.0)
    return _shown("episodes", run, current, sections.episodes(run, path))


def _alarms(board: Board, request: Request) -> Response:
    run, path, current = board.run(request)
    return _shown("alarms", run, current, sections.alarms(run, path))


def _compare(board: Board, request: Request) -> Response:
    run, path, current = board.run(request, 0.0)
    other, folder = board.other(request)
    steps = [request.query_params.get(name) or "last" for name in ("step", "with-step")]
    return _shown("compare", run, current, sections.compare(run, path, other, folder, (steps[0], steps[1]), board.places.names()))


def _settings(board: Board, request: Request) -> Response:
    run, path, current = board.run(request, 0.0)
    other, folder = board.other(request)
    return _shown("settings", run, current, sections.settings(run, path, other, folder, board.places.names()))


# -- parts of pages -----------------------------------------------------------------------------------------------------


def _part_row(board: Board, request: Request) -> Response:
    name = request.query_params.get("run", "")
    found = _in_list(board, name)
    if found is None:
        raise NotFound(f"there is no run {name!r:.200} here; it may have been moved or removed")
    return HTMLResponse(pages.sound_row(found))


def _part_groups(board: Board, request: Request) -> Response:
    run, path, _ = board.run(request)
    return HTMLResponse(_listed(board, run, path, Wanted.of(request.query_params)))


# -- figures ------------------------------------------------------------------------------------------------------------


def _api_runs(board: Board, request: Request) -> Response:
    states, left_out = _states(board)
    return JSONResponse({"runs": to_storable([asdict(current) for current in states]), "left_out": left_out})


def _api_curves(board: Board, request: Request) -> Response:
    runs, keys, evals, left_out = [], set[str](), {}, []
    for name in request.query_params.getlist("run")[:MOST_RUNS]:
        path = board.places.run(name)
        board.hub.ask(name, WAIT)
        data = run_queries.curves(path, state(name, path))
        runs.append(data["run"])
        keys.update(data["keys"])
        evals[name] = data["evals"]
        left_out += [f"{name}, {line}" for line in data["left_out"]]
    plan = {"runs": runs, "sections": run_queries.sections(sorted(keys)), "evals": evals, "shares": [*SHARES]}
    return JSONResponse({**plan, "left_out": left_out})


def _api_series(board: Board, request: Request) -> Response:
    name, query = request.query_params.get("run", ""), request.query_params
    path = board.places.run(name)
    board.hub.ask(name)
    low, high, points = (
        _number(query.get(key), other) for key, other in (("from", 0.0), ("to", 1e15), ("points", run_queries.POINTS))
    )
    points = int(min(max(points, 2), MOST_POINTS))
    return JSONResponse({"run": name, **run_queries.series(path, query.getlist("key")[:MOST_KEYS], low, high, points)})


def _number(text: str | None, other: float) -> float:
    import math

    try:
        value = float(text) if text else other
    except ValueError:
        raise NotFound(f"{text!r:.40} is not a number") from None
    return value if math.isfinite(value) else other


def _api_steps(board: Board, request: Request) -> Response:
    return JSONResponse({"steps": rollouts.recorded(board.places.run(request.query_params.get("run", "")))})


def _live(board: Board, request: Request) -> Response:
    names = request.query_params.getlist("run")[:MOST_RUNS]
    try:
        for name in names:
            board.places.run(name)
    except NotFound as error:
        return JSONResponse({"error": str(error)}, 404)
    if board.hub.is_full:
        return JSONResponse({"error": "too many pages of the board are open: close some"}, 503)

    async def events() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        async for message in board.hub.news(names):
            if message is None:
                yield ": alive\n\n"
            else:
                yield f"event: {message['kind']}\ndata: {json.dumps(message)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})


# -- files --------------------------------------------------------------------------------------------------------------


def _media(board: Board, request: Request) -> Response:
    file = board.places.media(request.query_params.get("run", ""), request.query_params.get("path", ""))
    kind = {".png": "image/png", ".wav": "audio/wav"}.get(file.suffix, "image/webp")
    return FileResponse(file, media_type=kind, headers={"cache-control": "private, max-age=86400"})


def _frame(board: Board, request: Request) -> Response:
    """One frame of a video, as PNG."""
    file = board.places.media(request.query_params.get("run", ""), request.query_params.get("path", ""))
    n = int(_number(request.query_params.get("n"), 0.0))
    shown = video_frames(contents(file, MAX_FILE), file.name)
    if not 0 <= n < min(len(shown), FRAMES):
        raise NotFound(f"{file.name} has no frame {n}")
    shown[n][0].convert("RGB").save(out := io.BytesIO(), "PNG", compress_level=1)
    return Response(out.getvalue(), media_type="image/png", headers={"cache-control": "private, max-age=86400"})


def _text(board: Board, request: Request) -> Response:
    run = board.places.run(request.query_params.get("run", ""))
    return PlainTextResponse(rollouts.text(run, request.query_params.get("id", "")).encode(errors="replace"))
