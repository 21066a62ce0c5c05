"""Networks for tokens that are not transformers: an LSTM, and the mean of word embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from kasync.models.seeded import positive, seeded


class TokenLSTM(nn.Module):
    """Tokens [N, T] to logits after each of them [N, T, classes], or after the last alone [N, classes]."""

    def __init__(self, vocabulary: int, embedding: int, width: int, layers: int, classes: int, last: bool) -> None:
        super().__init__()
        self.last = last
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, width, layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))  # [N, T, width]
        return self.head(states[:, -1] if self.last else states)


class WordBag(nn.Module):
    """The mean of the embeddings of tokens [N, T] that are not 0, the padding, and a dense layer: [N, classes]."""

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        is_word = (tokens != 0).unsqueeze(-1).to(self.embedding.weight.dtype)  # [N, T, 1]
        total = (self.embedding(tokens) * is_word).sum(1)  # [N, width]
        return self.head(total / is_word.sum(1).clamp(min=1))


def lstm(
    vocabulary: int,
    width: int = 64,
    layers: int = 2,
    embedding: int = 8,
    classes: int | None = None,
    last: bool = False,
    seed: int = 0,
) -> TokenLSTM:
    """An LSTM on tokens; LEAF's for Shakespeare is lstm(vocabulary, width=256, last=True).

    It predicts the next token after each (`last`: after the last one only), or `classes` of something else.
    """
    sizes = (("vocabulary", vocabulary), ("width", width), ("layers", layers), ("embedding", embedding))
    for setting, value in sizes:
        positive(setting, value)
    outputs = vocabulary if classes is None else positive("classes", classes)
    return seeded(lambda: TokenLSTM(vocabulary, embedding, width, layers, outputs, last), seed)


def word_bag(vocabulary: int, classes: int, width: int = 64, seed: int = 0) -> WordBag:
    """The mean of word embeddings and a dense layer (Joulin et al., "Bag of Tricks ...", 2017), for whole texts."""
    for setting, value in (("vocabulary", vocabulary), ("classes", classes), ("width", width)):
        positive(setting, value)
    return seeded(lambda: WordBag(vocabulary, width, classes), seed)
