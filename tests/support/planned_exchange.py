"""A learner that interrupts a sampler after chosen numbers of tokens, without a thread of its own."""

from mmrl.rollout.generate.exchange import WeightExchange


class Planned(WeightExchange):
    """An exchange whose learner comes after chosen numbers of tokens, in the sampler's own thread."""

    def __init__(self, plan):
        """plan: number of tokens -> what the learner does then."""
        self.plan, self.tokens, self.new = plan, 0, 100
        super().__init__()

    @property
    def wanted(self):
        self.tokens += 1
        return self.tokens in self.plan

    @wanted.setter
    def wanted(self, value):
        assert not value

    def _begin(self):
        """Nobody else takes turns."""

    _end = _begin

    def let_in(self):
        self.plan[self.tokens]()
        self.new += 1
        self.version = self.new


def nothing():
    """The learner's weights are what they were."""
