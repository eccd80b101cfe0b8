"""Kernels under test: bundled Triton ones, plain-torch twins and other people's (`peer_*`)."""
