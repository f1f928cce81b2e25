"""The smallest trainer: for tests of what a job adds to it, which are quick as there is little to read."""

print("trained")
