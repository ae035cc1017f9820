"""The parts that layers are made of. Each knows its products, its tensors, and what a position or a request leaves."""
