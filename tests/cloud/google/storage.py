"""Cloud Storage: buckets, whose names are global, and small objects in them."""

import base64
import email
import hashlib
import json
from collections.abc import Mapping

from .api_errors import ApiError
from .rest import Request, Rest, timestamp
from .store import check_labels

MEDIA = "__media__"  # where an object's content is kept


def insert_bucket(rest: Rest, request: Request) -> dict:
    """Create a bucket."""
    name = request.body.get("name", "")
    if rest.store.exists("storage", f"b/{name}"):
        raise ApiError("ALREADY_EXISTS", "The requested bucket name is not available. Please select another.")
    check_labels(request.body.get("labels") or {}, "labels")
    number = str(rest.world.project(request.first("project")).number)
    body = {**request.body, "id": name, "projectNumber": number, "metageneration": "1", "etag": "CAE="}
    body["timeCreated"] = timestamp(rest.world.clock.date())
    return rest.store.put("storage", f"b/{name}", body).body


def delete_bucket(rest: Rest, request: Request) -> dict:
    """Delete a bucket, which has to be empty."""
    rest.store.get("storage", request.path)
    if rest.store.children("storage", f"{request.path}/o"):
        raise ApiError("ALREADY_EXISTS", "The bucket you tried to delete is not empty.")
    rest.store.drop("storage", request.path)
    return {}


def list_objects(rest: Rest, request: Request) -> dict:
    """List the objects of a bucket, or those that begin with a prefix."""
    rest.store.get("storage", request.path.removesuffix("/o"))
    objects = [_shown(child.body) for child in rest.store.children("storage", request.path)]
    objects = [item for item in objects if item["name"].startswith(request.first("prefix"))]
    return rest.listed(request, sorted(objects, key=lambda blob: blob["name"]), "items")


def get_object(rest: Rest, request: Request) -> dict | bytes:
    """An object's metadata, or with ``alt=media`` its content."""
    body = rest.store.get("storage", request.path).body
    return body[MEDIA] if request.first("alt") == "media" else _shown(body)


def upload(rest: Rest, path: str, query: dict, content_type: str, raw: bytes) -> dict:
    """Take an upload in one request: ``uploadType`` media or multipart."""
    bucket, kind, metadata = path.split("/")[1], query["uploadType"][0], {}
    if kind == "multipart":
        parts = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + raw).get_payload()
        metadata, raw = json.loads(parts[0].get_payload()), parts[1].get_payload(decode=True)
    elif kind != "media":
        raise ApiError("UNIMPLEMENTED", "The fake takes uploads in one request only.")
    name = metadata.get("name") or query["name"][0]

    def act() -> dict:
        rest.store.get("storage", f"b/{bucket}")
        return _shown(put(rest, bucket, name, raw, metadata))

    return rest.world.serve("storage.objects.insert", f"b/{bucket}/o/{name}", act, title="Cloud Storage API")


def put(rest: Rest, bucket: str, name: str, raw: bytes, metadata: Mapping = {}) -> dict:
    """Write an object."""
    digest = base64.b64encode(hashlib.md5(raw).digest()).decode()
    body = {**metadata, "name": name, "bucket": bucket, "size": str(len(raw)), "md5Hash": digest, MEDIA: raw}
    body |= {"generation": str(len(rest.world.calls)), "timeCreated": timestamp(rest.world.clock.date())}
    return rest.store.put("storage", object_path(bucket, name), body).body


def object_path(bucket: str, name: str) -> str:
    """The path of an object in the store."""
    return f"b/{bucket}/o/{name.replace('%', '%25').replace('/', '%2F')}"


def _shown(body: dict) -> dict:
    return {key: value for key, value in body.items() if key != MEDIA}


SPECIALS = {
    "storage.buckets.insert": insert_bucket,
    "storage.buckets.delete": delete_bucket,
    "storage.objects.list": list_objects,
    "storage.objects.get": get_object,
}
