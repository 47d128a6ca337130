"""What a clip asks about itself: where a part of it is disturbed, how many shapes were put in, in which order its parts belong.

After Zefeng He et al., "VideoSSR: Video Self-Supervised Reinforcement Learning", 2025, and the scripts that they released.
"""
