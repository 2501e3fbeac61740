"""Keeps a cache of ConfigMaps with the label `w=follow` until one is called `stop`, and prints it."""

import logging
import os
import time

from kubernetes import client, config
from kubernetes.informer import SharedInformer

NS = os.environ["PANDA_NAMESPACE"]


def main():
    # What the informer says of a server that is away is no news here.
    logging.disable(logging.CRITICAL)
    config.load_kube_config()
    core = client.CoreV1Api()
    informer = SharedInformer(list_func=core.list_namespaced_config_map, namespace=NS, label_selector="w=follow")
    informer.start()
    print("ready", flush=True)
    while not any(item.metadata.name == "stop" for item in informer.cache.list()):
        time.sleep(0.02)
    lines = sorted(f"cache {item.metadata.name} {item.metadata.resource_version}" for item in informer.cache.list())
    print("\n".join(lines), flush=True)
    os._exit(0)


main()
