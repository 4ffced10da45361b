"""The mathematics of the algorithms: pure functions of tensors, each line annotated with its formula."""
