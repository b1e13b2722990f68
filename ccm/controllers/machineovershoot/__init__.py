"""The machine overshoot controller: a set with far too many machines makes no more of them."""
