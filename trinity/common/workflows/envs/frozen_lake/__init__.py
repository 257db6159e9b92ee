"""The frozen lake of Gymnasium."""
