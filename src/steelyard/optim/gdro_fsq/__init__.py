"""Group distributionally robust optimisation with flexible sample queries.

One model whose worst risk over m groups is small, trained while the number of groups queried per step changes at will.
A q-player (``PLAPlayer``) plays prediction with limited advice; ``fsq_minimize`` adds a follow-the-regularised-leader
w-player for convex problems, ``FlexGroupBatchSampler`` and ``FlexGroupDRO`` put the same player into a torch training
loop, and ``gdro_error_bound`` says what to expect after any number of rounds.
"""
