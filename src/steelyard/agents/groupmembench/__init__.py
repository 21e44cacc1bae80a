"""Memory of a group chat: a benchmark, a generator of chats and questions, and memories with one interface."""
