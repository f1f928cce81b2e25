"""Fit a line with Keras on torch, in each rank."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

x = np.linspace(-1, 1, 256).reshape(-1, 1)
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
model.fit(x, 3 * x, epochs=3, batch_size=16, validation_split=0.25)
model.save("line.keras")
