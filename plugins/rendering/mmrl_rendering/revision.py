"""Several tries: the policy sees the rendering of its code and may write it again."""

from __future__ import annotations

from mmrl import Reply, user_message
from mmrl_rendering.code import Refused, render


class Redraw:
    """An episode about one picture. After each answer but the last the environment shows its rendering, or the error."""

    def __init__(self, code: str, turns: int, size: tuple[int, int]) -> None:
        """code: the language. turns: maximum of answers. size: (width, height) of the target picture."""
        self.code, self.left, self.size = code, turns, size

    def step(self, completion: str) -> Reply:
        self.left -= 1
        if not self.left:
            return Reply(terminated=True)
        try:
            drawn = render(completion, self.code, self.size)
        except Refused as error:
            return Reply(messages=[user_message(f"That draws nothing: {error}. Write the code again.")])
        return Reply(messages=[user_message("This is what your code draws. Write it again, closer to the picture.", drawn)])

    def close(self) -> None:
        pass
