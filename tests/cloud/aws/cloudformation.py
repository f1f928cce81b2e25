"""CloudFormation's API: what it refuses, and what it shows of stacks. A method for each operation."""

import uuid
from typing import TYPE_CHECKING, Any

from . import templates
from .eks import page, trusted
from .faults import ACCOUNT, ADMINISTRATORS_KEY, Refused
from .stacks import IN_PROGRESS, Stack, Wanted
from .templates import invalid
from .wire import Question

if TYPE_CHECKING:
    from .server import FakeAws

EVENTS = 20  # on a page: who follows a stack asks for them again and again, and knows all but the newest
DO_NOTHING = (
    "This stack cannot be updated from [CREATE_FAILED] state because it contains [on-failure: DO_NOTHING]. "
    "Please use disable-rollback option instead during stack creation."
)
NON_TERMINAL = (
    "This stack is currently in a non-terminal [{}] state. To update the stack from this state, please use "
    "the disable-rollback parameter with update-stack API."
)


class CloudFormation:
    """The service."""

    def __init__(self, aws: "FakeAws") -> None:
        self.aws, self.clock = aws, aws.clock
        self.stacks: list[Stack] = []

    def create_stack(self, question: Question) -> dict[str, Any]:
        query, name = question.parameters, question.parameters["StackName"]
        token = query.get("ClientRequestToken", "")
        for stack in self._alive(question.region):
            if stack.name == name:
                if token and stack.tokens.get(token) == "CREATE":
                    return {"StackId": stack.id}
                raise Refused("AlreadyExistsException", f"Stack [{name}] already exists", status=400)
        if "OnFailure" in query and "DisableRollback" in query:
            raise invalid("You can specify either DisableRollback or OnFailure, but not both.")
        identity = f"arn:aws:cloudformation:{question.region}:{ACCOUNT}:stack/{name}/{uuid.uuid4()}"
        new_stack = Stack(self, identity, name, question.region, self._wanted(query))
        new_stack.kept = bool(query.get("DisableRollback")) or query.get("OnFailure") == "DO_NOTHING"
        new_stack.by_administrator = question.key == ADMINISTRATORS_KEY
        new_stack.on_failure = query.get("OnFailure") or "ROLLBACK"
        templates.dependencies(new_stack.scope())
        self.stacks.append(new_stack)
        new_stack.begin("CREATE", token)
        return {"StackId": identity}

    def update_stack(self, question: Question) -> dict[str, Any]:
        stack, query = self._find(question), question.parameters
        self._updatable(stack, query)
        desired = self._wanted(query, stack)
        if not stack.changes(desired):
            raise invalid("No updates are to be performed.")
        self._apply(stack, desired, query)
        return {"StackId": stack.id}

    def delete_stack(self, question: Question) -> dict[str, Any]:
        query = question.parameters
        stack = self._look(question)
        if stack is None or stack.status in ("DELETE_IN_PROGRESS", "DELETE_COMPLETE"):
            return {}
        if stack.status.endswith(IN_PROGRESS) and not stack.status.startswith("CREATE_"):
            raise invalid(f"Stack [{stack.id}] cannot be deleted while in status {stack.status}")
        stack.wanted.role = query.get("RoleARN") or stack.wanted.role
        self._check_role(stack.wanted.role)
        former = stack.status
        stack.begin("DELETE", query.get("ClientRequestToken", ""))
        exported = {output["ExportName"] for output in stack.outputs if "ExportName" in output}
        for importer in self._alive(stack.region):
            if used := sorted(exported & importer.imports):
                words = f"Export {used[0]} cannot be deleted as it is in use by {importer.name}"
                stack.run += 1
                self.clock.after(5, lambda words=words: stack.set(former, words))
                break
        return {}

    def describe_stacks(self, question: Question) -> dict[str, Any]:
        query = question.parameters
        stacks = [self._find(question)] if query.get("StackName") else self._alive(question.region)
        return self._paged("Stacks", [_shown(stack) for stack in stacks], query)

    def describe_stack_events(self, question: Question) -> dict[str, Any]:
        part, token = page(
            self._find(question).events[::-1], question.parameters, self.aws.page_size or EVENTS
        )
        return {"StackEvents": part, "NextToken": token} if token else {"StackEvents": part}

    def list_stack_resources(self, question: Question) -> dict[str, Any]:
        rows = []
        for resource in self._find(question).resources.values():
            row = {"LogicalResourceId": resource.name, "PhysicalResourceId": resource.physical}
            row |= {"ResourceType": f"AWS::{resource.kind}", "ResourceStatus": resource.status}
            row |= {"LastUpdatedTimestamp": resource.updated, "ResourceStatusReason": resource.reason}
            rows.append(row)
        return self._paged("StackResourceSummaries", rows, question.parameters)

    def list_exports(self, question: Question) -> dict[str, Any]:
        return {"Exports": []}

    def get_template(self, question: Question) -> dict[str, Any]:
        return {"TemplateBody": self._find(question).wanted.text}

    def exported(self, region: str, name: str) -> str:
        """Return what a stack exports."""
        for stack in self._alive(region):
            for output in stack.outputs:
                if output.get("ExportName") == name:
                    return output["OutputValue"]
        raise invalid(f"No export named {name} found.")

    def _paged(self, key: str, rows: list[dict], query: dict[str, Any]) -> dict[str, Any]:
        part, token = page(rows, query, self.aws.page_size)
        return {key: part, "NextToken": token} if token else {key: part}

    def _wanted(self, query: dict[str, Any], stack: Stack | None = None) -> Wanted:
        """Return what a request asks for; an update keeps what it does not give."""
        former = stack.wanted if stack else Wanted()
        text = former.text if query.get("UsePreviousTemplate") else query.get("TemplateBody", "")
        template, values = templates.parse(text), {}
        for pair in query.get("Parameters") or []:
            key = pair["ParameterKey"]
            values[key] = (
                former.values[key] if pair.get("UsePreviousValue") else pair.get("ParameterValue", "")
            )
        tags = {tag["Key"]: tag["Value"] for tag in query["Tags"]} if "Tags" in query else former.tags
        roles = [item for item in template["Resources"].values() if item["Type"].startswith("AWS::IAM::")]
        if roles and "CAPABILITY_NAMED_IAM" not in (query.get("Capabilities") or ()):
            words = "Requires capabilities : [CAPABILITY_NAMED_IAM]"
            raise Refused("InsufficientCapabilitiesException", words, status=400)
        role = query.get("RoleARN") or former.role
        self._check_role(role)
        return Wanted(text, template, templates.parameters(template, values), tags, role)

    def _apply(self, stack: Stack, desired: Wanted, query: dict[str, Any]) -> None:
        stack.wanted, stack.kept = desired, bool(query.get("DisableRollback"))
        stack.begin("UPDATE", query.get("ClientRequestToken", ""))

    def _updatable(self, stack: Stack, query: dict[str, Any]) -> None:
        if stack.status == "CREATE_FAILED" and stack.on_failure == "DO_NOTHING":
            raise invalid(DO_NOTHING)
        if stack.status in ("CREATE_FAILED", "UPDATE_FAILED") and not query.get("DisableRollback"):
            raise invalid(NON_TERMINAL.format(stack.status))
        if stack.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "CREATE_FAILED", "UPDATE_FAILED"):
            raise invalid(f"Stack:{stack.id} is in {stack.status} state and can not be updated.")

    def _check_role(self, arn: str) -> None:
        if arn and not (trusted(arn, "cloudformation.amazonaws.com") and self.aws.usable(arn)):
            raise invalid(f"Role {arn} is invalid or cannot be assumed")

    def _alive(self, region: str) -> list[Stack]:
        return [stack for stack in self.stacks if stack.region == region and not stack.ended]

    def _look(self, question: Question) -> Stack | None:
        name, alive = question.parameters["StackName"], self._alive(question.region)
        return next(
            (item for item in self.stacks if item.id == name or item.name == name and item in alive), None
        )

    def _find(self, question: Question) -> Stack:
        stack = self._look(question)
        if stack is None:
            raise invalid(f"Stack with id {question.parameters['StackName']} does not exist")
        return stack


def _shown(stack: Stack) -> dict[str, Any]:
    desired = stack.wanted
    query = [{"ParameterKey": key, "ParameterValue": value} for key, value in desired.values.items()]
    tags = [{"Key": key, "Value": value} for key, value in desired.tags.items()]
    facts = {"StackId": stack.id, "StackName": stack.name, "Parameters": query, "Tags": tags}
    facts |= {"CreationTime": stack.created, "StackStatus": stack.status, "StackStatusReason": stack.reason}
    facts |= {"DisableRollback": stack.kept, "Outputs": stack.outputs}
    return facts | ({"RoleARN": desired.role} if desired.role else {})
