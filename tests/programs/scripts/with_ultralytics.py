"""Train YOLO11 from its configuration on drawn boxes."""

from ultralytics import YOLO

YOLO("yolo11n.yaml").train(
    data="/data/boxes/boxes.yaml", epochs=1, imgsz=64, batch=4, device="cpu", workers=0
)
