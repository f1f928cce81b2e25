"""Balance a pole with PPO of Stable-Baselines3."""

from stable_baselines3 import PPO

PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, verbose=1, device="cpu").learn(total_timesteps=256)
