"""The critics of `[stages.turn_critic]`: what they remember, how they learn from it, and what resumes them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch

from mmrl.algorithms import turns
from mmrl.algorithms.off_policy import follow, lowest, returns_to_go
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.config.sections import RlStage
from mmrl.policies.action_values import ActionValues
from mmrl.policies.shard_files import Under
from mmrl.policies.turn_states import TurnEyes, TurnStates
from mmrl.train.update.digested import read, write
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Episode, Layout, Replay

CRITICS = 2
"""Critics of a kind, side by side; the lower counts."""
TURNS, PROMPTS, WEIGHTS = "turns.safetensors", "prompts.safetensors", "turn-critic.safetensors"
"""The files of the memories of turns and of prompts, and of the critics, in a checkpoint."""


class TurnCritics:
    """Critics that read `TurnStates`. A subclass says what they learn."""

    modules: dict[str, ActionValues]
    """What is trained, and what follows it, by name."""

    def __init__(self, eyes: TurnEyes, stage: RlStage, seed: int, device: torch.device) -> None:
        """seed: of the first weights and of all draws."""
        assert stage.turn_critic is not None
        self.eyes, self.config, self.seed, self.device, self.calls = eyes, stage.turn_critic, seed, device, 0
        layout = Layout(simulator="turns", action=eyes.width, features=eyes.width)
        self.memory = Replay(layout, self.config.capacity, gamma=self.config.gamma)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.modules = {name: module.to(device) for name, module in self.made().items()}
        self.trained = [(f"{n}.{k}", p) for n, m in self.modules.items() for k, p in m.named_parameters() if p.requires_grad]
        keys = {"learning_rate": self.config.learning_rate, "max_grad_norm": self.config.max_grad_norm}
        own = stage.model_copy(update=keys | {"ema_decay": 0.0, "parts": []})  # these are the policy's
        self.optimizer = Optimizer(self.trained, own)

    def made(self) -> dict[str, ActionValues]:
        """The critics' modules, with new weights."""
        raise NotImplementedError

    def loss(self, seed: int, newest: int, anew: Sequence[TurnStates]) -> torch.Tensor:
        """The loss of an update, on what is drawn with this seed. newest: turns that the policy has just played. anew: what it
        answers now to what is remembered."""
        raise NotImplementedError

    def values(self, states_nH: torch.Tensor) -> torch.Tensor:
        """float32 [n], on the host: the lower value of each state."""
        raise NotImplementedError

    def answers(self, states: TurnStates) -> torch.Tensor:
        """float32 [T], on the host: the lower value of each answer."""
        raise UserError(f'turn_critic.rule = "{self.config.rule}" has no values of answers: set rule = "returns"')

    def wanted(self, rewards_T: torch.Tensor) -> torch.Tensor:
        """float32 [T]: what the values of an episode's states should have been."""
        return returns_to_go(rewards_T, self.config.gamma)

    def followed(self) -> None:
        """What comes after a step of the optimiser."""

    def heads(self, features: int, actions: int = 0, critics: int = CRITICS, deep: bool = True) -> ActionValues:
        """New critics. deep: with hidden layers."""
        return ActionValues(features, actions, critics=critics, hidden=self.config.hidden if deep else ())

    # -- learning ---------------------------------------------------------------------------------------------------------

    def add(self, states: TurnStates, rewards_T: torch.Tensor, terminated: bool) -> None:
        """Remember an episode."""
        seen, paid_T = states.seen_TH, rewards_T.float()
        whole: dict[str, torch.Tensor] = {
            "seen_TF": seen[:-1],
            "after_TF": seen[1:],
            "actions_TA": states.said_TH,
            "rewards_T": paid_T,
        }
        self.memory.add(Episode(**whole, terminated=terminated))

    def learn(self, newest: int, step: int, anew: Sequence[TurnStates] = ()) -> dict[str, float]:
        """`updates` steps of the optimiser; return metrics. newest, anew: see `loss`."""
        summed, norm = 0.0, 0.0
        for number in range(self.config.updates):
            loss = self.loss(derive(self.seed, "turns", self.calls, number), newest, anew)
            if not loss.isfinite():
                raise UserError("the loss of the turn critic is not finite: lower stages.turn_critic.learning_rate")
            self.optimizer.backward(loss)
            norm += self.optimizer.step(step)["grad_norm"] / self.config.updates
            self.followed()
            summed += loss.item() / self.config.updates
        self.calls += 1
        return {"value_loss": summed, "grad_norm/critic": norm, "turn_critic/remembered": float(len(self.memory))}

    # -- resume -----------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the critics, what they see with and what they remember into a checkpoint's folder."""
        found = {f"{name}/{key}": x for name, module in self.modules.items() for key, x in module.state_dict().items()}
        found |= {f"optimizer/{name}": x for name, x in self.optimizer.state().items()}
        found |= {f"eyes/{name}": x for name, x in self.eyes.state().items()}
        write(folder / WEIGHTS, {k: x.detach().cpu().contiguous().clone() for k, x in found.items()}, {"calls": str(self.calls)})
        self.memory.save(folder / TURNS)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Raises UserError for files that are torn or of critics of another size."""
        marks, tensors = read(folder / WEIGHTS, "file of turn critics", f"runs/NAME/checkpoints/step-.../{WEIGHTS}")
        for name, module in self.modules.items():
            for key, x in module.state_dict().items():
                found = tensors.get(f"{name}/{key}")
                if found is None or found.shape != x.shape:
                    there = None if found is None else list(found.shape)
                    raise UserError(f"the saved turn critic's {name}.{key} is {there}, and {list(x.shape)} here: set equal keys")
                x.copy_(found)
        self.optimizer.load_state(Under(tensors, "optimizer/"))
        self.eyes.load(Under(tensors, "eyes/"))
        self.memory.load(folder / TURNS)
        self.calls = int(marks["calls"])


class ReturnCritics(TurnCritics):
    """ArCHer's: values of answers learn from all turns what comes next, and values of states from the policy's own answers, in
    the newest turns or to what is remembered. Each has a target that follows it."""

    def made(self) -> dict[str, ActionValues]:
        own = {"answers": self.heads(self.eyes.width, self.eyes.width), "states": self.heads(self.eyes.width)}
        return own | {f"target_{name}": copy.deepcopy(module).requires_grad_(False) for name, module in own.items()}

    def _states(self, states_nH: torch.Tensor, target: bool = False) -> torch.Tensor:
        """[E, n]."""
        found: torch.Tensor = self.modules["target_states" if target else "states"](states_nH, states_nH[:, :0])
        return found

    def _answers(self, seen_nH: torch.Tensor, said_nH: torch.Tensor, target: bool = False) -> torch.Tensor:
        """[E, n]."""
        found: torch.Tensor = self.modules["target_answers" if target else "answers"](seen_nH, said_nH)
        return found

    def loss(self, seed: int, newest: int, anew: Sequence[TurnStates]) -> torch.Tensor:
        drawn = self.memory.draw(self.config.batch_size, seed).on(self.device)
        seen_nH, said_nH = (x.to(self.device) for x in self._own(derive(seed, "newest"), newest, anew))
        with torch.no_grad():
            next_En = self._states(drawn.after_nF, target=True)
            answers_En = self._answers(seen_nH, said_nH, target=True)
        of_answers = self._answers(drawn.seen_nF, drawn.actions_nA)
        found = turns.returns_loss(of_answers, drawn.rewards_n, drawn.discounts_n, next_En)
        return found + turns.values_loss(self._states(seen_nH), answers_En)

    def _own(self, seed: int, newest: int, anew: Sequence[TurnStates]) -> tuple[torch.Tensor, torch.Tensor]:
        """States, and answers to them by the policy as it is."""
        if not anew:
            own = self.memory.draw(self.config.batch_size, seed, newest=newest)
            return own.seen_nF, own.actions_nA
        noise = torch.Generator().manual_seed(seed)
        drawn = [anew[n] for n in torch.randint(len(anew), (self.config.batch_size,), generator=noise).tolist()]
        return torch.stack([x.seen_TH[0] for x in drawn]), torch.stack([x.said_TH[0] for x in drawn])

    def followed(self) -> None:
        for name in ("answers", "states"):
            targets, sources = ([p.data for p in self.modules[key].parameters()] for key in (f"target_{name}", name))
            follow(targets, sources, self.config.target_rate)

    @torch.no_grad()
    def values(self, states_nH: torch.Tensor) -> torch.Tensor:
        return lowest(self._states(states_nH.to(self.device))).cpu()

    @torch.no_grad()
    def answers(self, states: TurnStates) -> torch.Tensor:
        return lowest(self._answers(states.seen_TH[:-1].to(self.device), states.said_TH.to(self.device))).cpu()


class SuccessCritics(TurnCritics):
    """DigiRL's: the probability of success in a state, and that of an episode from its prompt alone."""

    def __init__(self, eyes: TurnEyes, stage: RlStage, seed: int, device: torch.device) -> None:
        super().__init__(eyes, stage, seed, device)
        layout = Layout(simulator="episodes", action=1, features=eyes.width)
        self.episodes = Replay(layout, self.config.capacity, gamma=self.config.gamma)
        """A transition for each episode: the state after its prompt, and what it was paid."""

    def made(self) -> dict[str, ActionValues]:
        return {"states": self.heads(self.eyes.width), "prompts": self.heads(self.eyes.width, critics=1, deep=False)}

    def add(self, states: TurnStates, rewards_T: torch.Tensor, terminated: bool) -> None:
        super().add(states, rewards_T, terminated)
        seen, paid = states.seen_TH, returns_to_go(rewards_T, self.config.gamma)
        ends = {"seen_TF": seen[:1], "after_TF": seen[-1:], "actions_TA": torch.zeros(1, 1), "rewards_T": paid[:1]}
        self.episodes.add(Episode(**ends, terminated=True))

    def _logits(self, name: str, states_nH: torch.Tensor) -> torch.Tensor:
        """[E, n]."""
        states_nH = states_nH.to(self.device)
        found: torch.Tensor = self.modules[name](states_nH, states_nH[:, :0])
        return found

    def loss(self, seed: int, newest: int, anew: Sequence[TurnStates]) -> torch.Tensor:
        drawn = self.memory.draw(self.config.batch_size, seed).on(self.device)
        begun = self.episodes.draw(self.config.batch_size, derive(seed, "episodes")).on(self.device)
        found = turns.success_loss(self._logits("states", drawn.seen_nF), drawn.paid_n > 0)
        found = found + turns.success_loss(self._logits("states", drawn.after_nF), drawn.paid_n > 0)
        return found + turns.success_loss(self._logits("prompts", begun.seen_nF), begun.rewards_n > 0)

    def wanted(self, rewards_T: torch.Tensor) -> torch.Tensor:
        return (super().wanted(rewards_T) > 0).float()

    @torch.no_grad()
    def values(self, states_nH: torch.Tensor) -> torch.Tensor:
        return lowest(self._logits("states", states_nH)).sigmoid().cpu()

    @torch.no_grad()
    def chances(self, states_nH: torch.Tensor) -> torch.Tensor:
        """float32 [n], on the host: the probability of success from the state after a prompt."""
        return self._logits("prompts", states_nH)[0].sigmoid().cpu()

    def save(self, folder: Path) -> None:
        super().save(folder)
        self.episodes.save(folder / PROMPTS)

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.episodes.load(folder / PROMPTS)


KINDS: dict[str, type[TurnCritics]] = {"returns": ReturnCritics, "success": SuccessCritics}
"""The critics of each rule."""
