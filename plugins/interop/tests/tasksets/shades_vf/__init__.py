"""A taskset of verifiers whose rewards misbehave when they are told to."""

import asyncio
import base64
import io
import time

import verifiers.v1 as vf
from PIL import Image


class Data(vf.TaskData):
    shade: int


class Tools(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def look(self) -> str:
        """Look closer."""
        return "dark"


class TaskConfig(vf.TaskConfig):
    tools: bool = False


class Shade(vf.Task[Data, vf.State, TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Tools(vf.ToolsetConfig())] if config.tools else []

    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        said = trace.last_reply
        if said == "raise":
            raise ValueError("a bug")
        if said == "nan":
            return float("nan")
        if said == "none":
            return None
        if said == "hang":
            time.sleep(60)
        if said == "wait":
            await asyncio.sleep(60)
        return float(said == str(self.data.shade))

    @vf.reward(weight=0.5)
    async def brief(self, trace) -> float:
        return float(len(trace.last_reply) < 5)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.TasksetConfig):
    first: int = 0
    n: int = 20
    task: TaskConfig = TaskConfig()


class Shades(vf.Taskset[Shade, Config]):
    def load(self):
        for i in range(self.config.first, self.config.first + self.config.n):
            Image.new("RGB", (56, 28), (10 * i,) * 3).save(buffer := io.BytesIO(), "PNG")
            url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
            parts = [vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url=url)), vf.TextContentPart(text="How dark?")]
            yield Shade(
                Data(id=f"shade-{i}", prompt=[vf.UserMessage(content=parts)], system_prompt="Be brief.", shade=i),
                self.config.task,
            )


__all__ = ["Shades"]
