"""Create, find, wait for and delete local clusters."""
