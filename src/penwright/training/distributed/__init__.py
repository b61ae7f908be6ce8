"""Training in several processes (ranks): torchrun, the messages between ranks, DDP and FSDP2."""
