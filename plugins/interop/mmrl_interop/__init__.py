"""mmrl's tasks and verifiers in other trainers, and other trainers' rewards in mmrl. One module per peer."""

MMRL_CONTRACT = 2
