from toys.coin.card import CARD as COIN

CARD = COIN.model_copy(update={"id": "toys.tuned"})
