"""Go's tests and fuzzing of the store of images, whose package gets ``fuzz_test.go`` by an overlay."""

TARGETS = ("FuzzLayer", "FuzzReference")
