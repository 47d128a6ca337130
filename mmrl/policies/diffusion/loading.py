"""The folders of a Diffusion Policy, as LeRobot saves them."""

from __future__ import annotations

from mmrl.policies.acting.lerobot_folder import Layout
from mmrl.policies.diffusion import tiny
from mmrl.policies.diffusion.config import CALLED, read_config
from mmrl.policies.diffusion.network import Network

LAYOUT = Layout(
    family=tiny.FAMILY,
    called=CALLED,
    cure="give a folder or hub name of a Diffusion Policy that LeRobot saved, or tiny:diffusion",
    read_config=read_config,
    parse=tiny.parse,
    tiny=tiny.config,
    network=Network,
)
