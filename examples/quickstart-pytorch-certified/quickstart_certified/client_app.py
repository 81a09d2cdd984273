"""The ClientApp, as in Flower's quickstart: nothing in it knows that its metrics will be certified."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart_certified.task import Net, load_data, test, train

LOCAL_EPOCHS_ALONE = 20  # of a model that nobody else trains

app = ClientApp()


@app.train()
def train_locally(message: Message, context: Context) -> Message:
    """Train the model on this client's examples."""
    examples, _ = load_data(int(context.node_config["partition-id"]))
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = context.run_config
    loss = train(net, examples, epochs=int(config["local-epochs"]), learning_rate=float(config["learning-rate"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(examples[1])})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_locally(message: Message, context: Context) -> Message:
    """Evaluate the model, and one that this client trained alone, on examples that no client trains on."""
    own, examples = load_data(int(context.node_config["partition-id"]))
    net, alone = Net(), Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(alone, own, epochs=LOCAL_EPOCHS_ALONE, learning_rate=float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"eval_acc": test(net, examples), "num-examples": len(examples[1])})
    metrics["local_acc"] = test(alone, examples)
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
