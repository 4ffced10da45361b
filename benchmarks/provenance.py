"""What a measurement was made on."""

from minerva.utils.hardware import gpu, hardware

__all__ = ["gpu", "hardware"]
