"""The whole app on one machine: the command, the launcher of Flower and the scenarios."""
