"""The mathematics: pure functions of tensors, each line of it annotated with the formula it computes."""
