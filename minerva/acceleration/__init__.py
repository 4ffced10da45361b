"""How an update runs: flat parameters, functional optimizers, compiling, CUDA graphs, and what chooses among them."""
