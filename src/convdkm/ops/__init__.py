"""What machines are made into: a few operations on the data blocks, and how they join.

Training runs them with the gradients of what they hold, prediction the same ones with constants.
"""
