"""Self-supervised tasks on clips: a disturbed part, the number of added shapes, the order of parts.

After Zefeng He et al., "VideoSSR: Video Self-Supervised Reinforcement Learning", 2025, and the scripts that they released.
"""
