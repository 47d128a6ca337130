"""An environment of verifiers with several turns, over a taskset without an end."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    number: int


class Guess(vf.Task[Data]):
    pass


class EnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Play(vf.Env[EnvConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment, turns = await interaction.turn(), 1
            while not segment.terminated and segment.last_reply != str(task.data.number) and turns < 4:
                segment, turns = await interaction.turn("No. Guess again."), turns + 1
        interaction.trace.record_reward("guessed", float(segment.last_reply == str(task.data.number)), 2.0)
        interaction.trace.record_metric("turns", turns)


class Guesses(vf.Taskset[Guess, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        i = 0
        while True:
            yield Guess(Data(id=str(i), prompt="Guess a number.", number=i % 10), self.config.task)
            i += 1


__all__ = ["Guesses", "Play"]
