"""The section `[stages.experts]`: models whose layers are mixtures of experts."""

from __future__ import annotations

from typing import Literal

from mmrl.config.values import Section, Weight


class ExpertsConfig(Section):
    """`[stages.experts]`: the routers of a mixture of experts, and the routes of tokens through it."""

    router_replay: Literal["disabled", "R2", "R3"] = "disabled"
    """Which experts tokens go through in updates. `R3`: those with which they were sampled (Ma et al., arXiv 2510.11370); `R2`:
    those of the step's first forward pass, also in later mini-batches and epochs (Zheng et al., GSPO, arXiv 2507.18071). Gates
    are always computed anew, so that the router learns."""
    compare_sampler: bool = False
    """Have the sampler tell which experts it chose, to measure `experts/mismatch`. `R3` does that anyway."""
    freeze_router: bool = False
    """Don't train the routers."""
    aux_loss_coef: Weight = 0.0
    """Weight of the load-balancing loss of Switch Transformers (Fedus et al., arXiv 2101.03961, section 2.2), over the trained
    tokens of the whole mini-batch, the mean over layers; such as 0.001. It needs a further forward pass per optimiser step."""
    z_loss_coef: Weight = 0.0
    """Weight of the router z-loss (Zoph et al., ST-MoE, arXiv 2202.08906, equation 5), the mean over trained tokens and layers;
    such as 0.001."""

    @property
    def asks_sampler(self) -> bool:
        """Whether the sampler tells which experts it chose."""
        return self.router_replay == "R3" or self.compare_sampler
