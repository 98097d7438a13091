"""Steps that no capture can hold, run live on every rank of a mesh."""
