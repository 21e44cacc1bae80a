"""What steelyard serves on 127.0.0.1: the live view of a store."""
