"""Train an embedding model on pairs of sentences with Sentence Transformers; torchrun starts it."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, losses, models
from sentence_transformers.training_args import SentenceTransformerTrainingArguments

words = models.Transformer("/data/gpt2", max_seq_length=16)
model = SentenceTransformer(modules=[words, models.Pooling(words.get_embedding_dimension())], device="cpu")
pairs = {"anchor": ["to be or not to be"] * 16, "positive": ["that is the question"] * 16}
settings = SentenceTransformerTrainingArguments(
    "out", max_steps=4, logging_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to="none"
)
trainer = SentenceTransformerTrainer(
    model, settings, train_dataset=Dataset.from_dict(pairs), loss=losses.MultipleNegativesRankingLoss(model)
)
trainer.train()
