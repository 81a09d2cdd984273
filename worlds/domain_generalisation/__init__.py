"""Training for domains that nobody has seen: methods that align the sources, and DR-DG (Mehra et al. 2022).

A domain is one distribution of the same kind of images, such as digits at one angle. `methods` has what each method
minimises, `training` the loop, and the game against a moved representation.
"""
