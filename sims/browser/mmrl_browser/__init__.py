"""Web pages in a real browser: MiniWoB++, folders of HTML files, HTML texts; without network, except for the pages served
here."""

from mmrl import SimulatorSpec, hookimpl

MMRL_CONTRACT = 2

ABILITIES = frozenset(("partial-reset", "per-env-seed", "render-cpu"))


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    def screens(name: str, target: str, summary: str) -> SimulatorSpec:
        return SimulatorSpec(
            id=f"browser/{name}",
            target=f"mmrl_browser.{target}",
            summary=summary,
            screens=True,
            max_steps=20,
            capabilities=ABILITIES,
            doctor="mmrl_browser.diagnosis:findings",
        )

    return [
        screens("miniwob", "miniwob:MiniWoB", "MiniWoB++'s 125 pages, with its seeds and rewards"),
        screens("folder", "folder:Folder", "a folder of your own HTML pages, with instructions and success conditions"),
        screens("html", "html:Html", "pages given as HTML text"),
    ]
