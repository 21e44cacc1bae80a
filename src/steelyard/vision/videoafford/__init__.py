"""VideoAfford: which points of an object afford the action that a clip shows on another object, in a reconstruction."""
